"""python -m ubep.generate --model FOLDER --ranks N: text, its experts spread over N processes.

The i-th prompt is that of rank i mod N; ranks without a prompt only compute for the others. Under
torchrun, mpirun or srun the ranks are those of the launcher. Prints the first prompt's text as it
comes, then the time per output token (TPOT) and where it went, as rank 0 saw it. With several
--comm each step takes the next of them in turn, so that all see the same machine.
"""

import argparse
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import uuid
from datetime import timedelta

from .exchange import EXCHANGES, OverUbep
from .model import Config, Experts, TinyMoe, sampler
from .serve import Server

WARM_UP = 3  # steps of each kind that are not counted
SECONDS = 120  # that ranks wait for each other
PR_SET_PDEATHSIG = 1  # of Linux: ranks end with the command


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m ubep.generate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="FOLDER",
                        help="checkpoint in the layout of Qwen3-MoE, with tokenizer.json")
    parser.add_argument("--ranks", type=int, help="processes (default: those of the launcher, or 1)")
    parser.add_argument("--prompt", action="append", help="may be given several times")
    parser.add_argument("--batch", type=int, help="sequences; prompts are taken in turn")
    parser.add_argument("--tokens", type=int, default=200, help="to be generated, of each sequence")
    parser.add_argument("--temperature", type=float, default=0, help="0: the best token (greedy)")
    parser.add_argument("--seed", type=int, default=1, help="of --temperature")
    parser.add_argument("--comm", default="ubep", help=f"some of {','.join(EXCHANGES)}")
    parser.add_argument("--record", metavar="FILE", help="write the routing of rank 0's tokens here")
    parser.add_argument("--check", action="store_true",
                        help="compare each token with transformers in one process")
    args = parser.parse_args(arguments)
    args.prompt = args.prompt or ["The morning was fine, and"]
    args.comm = args.comm.split(",")
    unknown = [name for name in args.comm if name not in EXCHANGES]
    if unknown:
        parser.error(f"--comm {','.join(unknown)}: not one of {', '.join(EXCHANGES)}")
    least = {"--ranks": args.ranks, "--batch": args.batch, "--tokens": args.tokens}
    for name, value in least.items():
        if value is not None and value < 1:
            parser.error(f"{name} is {value}, expected at least 1")
    if not os.path.isfile(os.path.join(args.model, "config.json")):
        parser.error(f"--model is {args.model}, expected a folder with config.json")
    if not all(args.prompt):
        parser.error("--prompt is empty, expected text")
    if args.record and not os.path.isdir(os.path.dirname(args.record) or "."):
        parser.error(f"--record is {args.record}, expected a file in a folder that exists")
    if not 0 <= args.temperature <= 100:
        parser.error(f"--temperature is {args.temperature}, expected 0 to 100")
    if args.batch:
        args.prompt = [args.prompt[i % len(args.prompt)] for i in range(args.batch)]
    return args


def launched():
    """(rank, size) that a launcher tells of by its variables, or None."""
    import ubep

    if not ubep.Bootstrap.in_environment():
        return None
    place = ubep.from_environment()
    return place.rank, place.size


class Stream:
    """Prints text as its tokens come."""

    def __init__(self, tokenizer):
        self.tokenizer, self.shown = tokenizer, 0

    def show(self, tokens):
        text = self.tokenizer.decode(tokens)
        if not text.endswith("\ufffd"):  # else half a character
            print(text[self.shown:], end="", flush=True)
            self.shown = len(text)


def chooser(args):
    """Takes logits [1, vocabulary]; the same for every sequence and any number of ranks."""
    if args.temperature > 0:
        return sampler(args.temperature, args.seed)
    return lambda logits: logits.argmax(-1)


def make_exchanges(args, rank, size, server, bootstrap):
    config = server.model.config
    each = config.num_experts // size
    experts = [Experts.load(args.model, layer, rank * each, (rank + 1) * each)
               for layer in range(config.num_hidden_layers)]
    made = []
    for name in args.comm:
        more = {"bootstrap": bootstrap, "max_tokens": server.max_tokens} if name == OverUbep.name else {}
        made.append(EXCHANGES[name](rank, size, config, experts, **more))
    return made


def join_gloo(args, rank, size, meeting):
    if not any(name.startswith("gloo") for name in args.comm):
        return
    import torch.distributed as dist

    how = {"timeout": timedelta(seconds=SECONDS)}
    if meeting is not None:
        how.update(store=dist.FileStore(meeting, size), rank=rank, world_size=size)
    dist.init_process_group("gloo", **how)


def leave_gloo():
    """Ends gloo's threads: those that are left when the interpreter ends can abort the process."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def run_rank(rank, size, args, job=None, meeting=None):
    import tokenizers
    import torch

    import ubep

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
    model = TinyMoe(args.model, moe=lambda *_: None)
    server = Server(model, rank, size, [tokenizer.encode(p).ids for p in args.prompt],
                    lambda: chooser(args))
    bootstrap = ubep.local(rank, size, job, timeout=SECONDS) if job else None
    join_gloo(args, rank, size, meeting)
    exchanges = make_exchanges(args, rank, size, server, bootstrap)
    record = [] if args.record and rank == 0 else None
    stream = Stream(tokenizer)
    if rank == 0:
        print(args.prompt[0], end="", flush=True)
    server.prefill(exchanges[0], record)
    steps = {exchange.name: [] for exchange in exchanges}
    for i in range(args.tokens - 1):
        if rank == 0:
            stream.show(server.sequences[0].chosen)
        exchange = exchanges[i % len(exchanges)]
        steps[exchange.name].append(server.step(exchange, record))
    if rank == 0:
        stream.show(server.sequences[0].chosen)
        report(args, size, steps)
    if record is not None:
        save_routing(args.record, record)
    for exchange in exchanges:
        exchange.close()
    leave_gloo()
    return check(args, rank, server) if args.check else 0


def report(args, size, steps):
    first = next(iter(steps.values()))
    print(f"\n\nTPOT in ms, {size} ranks, {len(args.prompt)} sequences, as rank 0 saw it")
    print(f"{'comm':16}{'steps':>6}{'mean':>8}{'p50':>8}{'p99':>8}{'dispatch':>10}{'experts':>9}"
          f"{'combine':>9}{'rest':>7}{'p50 / first':>13}")
    for name, all_steps in steps.items():
        counted = all_steps[WARM_UP:]
        if not counted:
            print(f"{name:16}{len(counted):6}  too few --tokens to tell")
            continue
        times = sorted(seconds for seconds, _ in counted)
        total = sum(times)
        shares = {part: sum(spent[part] for _, spent in counted) / total for part in counted[0][1]}
        p50 = times[len(times) // 2]
        base = sorted(seconds for seconds, _ in first[WARM_UP:])
        print(f"{name:16}{len(times):6}{1e3 * total / len(times):8.2f}{1e3 * p50:8.2f}"
              f"{1e3 * times[int(0.99 * (len(times) - 1))]:8.2f}{shares['dispatch']:10.0%}"
              f"{shares['experts']:9.0%}{shares['combine']:9.0%}{1 - sum(shares.values()):7.0%}"
              f"{p50 / base[len(base) // 2]:13.2f}")


def save_routing(path, record):
    """topk_idx int32 [layers, tokens, K] and topk_weights float32, for `ubep bench --routing`."""
    import torch
    from safetensors.torch import save_file

    layers = range(1 + max(layer for layer, _, _ in record))
    def stacked(part):
        return torch.stack([torch.cat([r[part] for r in record if r[0] == layer]) for layer in layers])

    save_file({"topk_idx": stacked(1).int(), "topk_weights": stacked(2).float()}, path)


def check(args, rank, server):
    """1 if a token differs from those of transformers."""
    if not server.sequences:
        return 0
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    network = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    wrong = 0
    for sequence in server.sequences:
        choose, expected = chooser(args), []
        for _ in range(args.tokens):
            with torch.no_grad():
                logits = network(torch.tensor([sequence.prompt + expected]), use_cache=False).logits
            expected.append(int(choose(logits[:, -1])))
        equal = sum(a == b for a, b in zip(expected, sequence.chosen))
        wrong += equal != args.tokens
        print(f"rank {rank}: {equal} of {args.tokens} tokens are those of transformers in one process")
    return int(wrong > 0)


def child(rank, size, args, job, meeting):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        sys.exit(run_rank(rank, size, args, job, meeting))
    except KeyboardInterrupt:
        sys.exit(130)


def failure(rank, code):
    """Says what ended a rank; the command's status: 3 where it was a signal."""
    if code >= 0:
        return code
    print(f"\nrank {rank} was ended by {signal.Signals(-code).name}", file=sys.stderr)
    return 3


def run_children(args, size):
    """Starts the ranks and ends them all when one fails. Returns the first status that is not 0."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "gloo")
        job = f"generate-{uuid.uuid4().hex}"
        ranks = [spawn.Process(target=child, args=(r, size, args, job, meeting)) for r in range(size)]
        for process in ranks:
            process.start()
        try:
            left = {process.sentinel: process for process in ranks}
            while left:
                for ended in multiprocessing.connection.wait(list(left)):
                    process = left.pop(ended)
                    process.join()
                    if process.exitcode != 0:
                        return failure(ranks.index(process), process.exitcode)
            return 0
        except KeyboardInterrupt:
            return 130
        finally:
            for process in ranks:
                process.terminate()
                process.join()


def main(arguments=None):
    args = parse(arguments)
    place = launched() if args.ranks is None else None
    size = place[1] if place else args.ranks or 1
    num_experts = Config.load(args.model).num_experts
    if num_experts % size:
        print(f"--ranks {size}: expected a divisor of the model's {num_experts} experts", file=sys.stderr)
        return 2
    return run_rank(*place, args) if place else run_children(args, size)
