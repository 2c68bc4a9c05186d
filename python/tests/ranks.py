"""Ranks as forked processes, with a hard limit of time."""

import itertools
import os
import pickle
import select
import signal
import sys
import time
import traceback

import numpy as np

import ubep

_jobs = itertools.count()


def job():
    """A rendezvous of its own for every use."""
    return f"python-tests/{os.getpid()}/{next(_jobs)}"


def _own_thread_pool():
    """PyTorch builds its pool anew after a fork, when a thread first asks for it; two threads that
    ask at once (transformers loads with several) may find none: "Invalid thread pool"."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _child(rank, size, name, body, args, pipe):
    try:
        _own_thread_pool()
        result = ("ok", body(ubep.local(rank, size, name), *args))
    except BaseException:  # noqa: B902 - the parent prints whatever it was
        result = ("failed", traceback.format_exc())
    try:
        data = pickle.dumps(result)
    except Exception:
        data = pickle.dumps(("failed", traceback.format_exc()))
    with os.fdopen(pipe, "wb") as out:
        out.write(data)
    sys.stdout.flush()
    # As an interpreter that ends would: the library's exit handler runs, pytest's do not.
    ubep._core._close_all()
    os._exit(0)


def _read_all(pipes, limit):
    """What each rank wrote, by rank; ranks that were not done within `limit` seconds are missing."""
    done, data, end = {}, {r: b"" for r in pipes}, time.monotonic() + limit
    while len(done) < len(pipes) and time.monotonic() < end:
        waiting = [pipes[r] for r in pipes if r not in done]
        ready, _, _ = select.select(waiting, [], [], max(0, end - time.monotonic()))
        for rank, pipe in pipes.items():
            if pipe in ready:
                part = os.read(pipe, 1 << 20)
                data[rank] += part
                if not part:
                    done[rank] = data[rank]
    return done


def run(size, body, *args, limit=30):
    """body(bootstrap, *args) on `size` processes; their results by rank. Fails with the tracebacks
    of ranks that raised, and kills those that are not done after `limit` seconds."""
    name, children, pipes = job(), [], {}
    for rank in range(size):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _child(rank, size, name, body, args, write)
        os.close(write)
        children.append(pid)
        pipes[rank] = read
    try:
        done = _read_all(pipes, limit)
    finally:
        for rank, pid in enumerate(children):
            os.close(pipes[rank])
            if rank not in locals().get("done", {}):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    late = [rank for rank in range(size) if rank not in done]
    assert not late, f"ranks {late} of {size} were not done after {limit} s"
    found = {rank: pickle.loads(data) if data else ("failed", "died") for rank, data in done.items()}
    failed = {rank: text for rank, (state, text) in found.items() if state == "failed"}
    assert not failed, "\n".join(f"rank {rank}:\n{text}" for rank, text in failed.items())
    return [found[rank][1] for rank in range(size)]


def open_comm(bootstrap, **options):
    """A communicator with what most tests need."""
    wanted = dict(num_experts=8, max_tokens=32, max_hidden=64, max_dtype="fp32", max_topk=4, timeout=20)
    return ubep.init(bootstrap, **(wanted | options))


def exact_case(rank, tokens, hidden=24, topk=4, num_experts=8, seed=0):
    """Tokens whose sums are the same bits in every order and in bf16: x [tokens, hidden], topk_idx,
    topk_weights. Some choices are -1."""
    rng = np.random.default_rng([seed, rank])
    x = rng.integers(-2, 3, (tokens, hidden)).astype(np.float32)
    idx = np.argsort(rng.random((tokens, num_experts)), axis=1)[:, :topk].astype(np.int32)
    idx[rng.random((tokens, topk)) < 0.15] = -1
    weights = rng.choice([0.5, 1.0], (tokens, topk)).astype(np.float32)
    return x, idx, weights


def dense_moe(x, idx, weights):
    """The layer in one process, where expert e gives (e + 1) * x."""
    factor = np.where(idx >= 0, weights * (idx + 1), 0).sum(axis=1)
    return factor[:, None] * x
