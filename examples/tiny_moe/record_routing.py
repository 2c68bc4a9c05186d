"""Records which experts the tokens of held-out text go to, for `ubep bench --routing file:PATH`.

    python record_routing.py --cache CACHE [--tokens 4096] [--out routing.safetensors]

The file has, for each layer N, `layers.N.topk_idx` int32 [tokens, K] and `layers.N.topk_weights`
float32 [tokens, K], as transformers computes them, in the order of the text: the first tokens of
the parts of the novels that training left out, in windows as long as those of training. The bench
reads `topk_idx`, which is that of layer 0, or what --tensor names; its weights are its own.
"""

import argparse
from pathlib import Path

import corpus
import torch
from reference import FOLDER, print_load
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

LENGTH = 256


def held_out(cache, tokenizer, count):
    """Windows [count / LENGTH, LENGTH] of tokens, as many of each novel's end."""
    _, texts = corpus.split(corpus.novels(cache))
    windows = []
    for text in texts:
        ids = torch.tensor(tokenizer(text, verbose=False).input_ids)
        windows += [ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)]
    each = min(len(w) for w in windows)
    turns = torch.stack([w[:each] for w in windows], 1).flatten(0, 1)  # the novels in turn
    if len(turns) * LENGTH < count:
        raise SystemExit(f"at most {len(turns) * LENGTH} tokens")
    return turns[: count // LENGTH]


def record(network, windows):
    """[(topk_idx, topk_weights)] of the layers."""
    found = [[] for _ in network.model.layers]
    for layer, into in zip(network.model.layers, found):
        layer.mlp.gate.register_forward_hook(
            lambda module, inputs, output, into=into: into.append((output[2], output[1])))
    with torch.no_grad():
        for window in windows:
            network(window[None])
    return [tuple(torch.cat(parts) for parts in zip(*into)) for into in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", required=True, help="folder for the downloaded package")
    parser.add_argument("--tokens", type=int, default=4096, help=f"a multiple of {LENGTH}")
    parser.add_argument("--out", default=str(Path(__file__).with_name("routing.safetensors")))
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    network = AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    routing = record(network, held_out(args.cache, tokenizer, args.tokens))
    tensors = {"topk_idx": routing[0][0].int()}
    for layer, (idx, weights) in enumerate(routing):
        tensors[f"layers.{layer}.topk_idx"] = idx.int()
        tensors[f"layers.{layer}.topk_weights"] = weights.float()
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, args.out)
    print_load(torch.stack([torch.bincount(idx.flatten(), minlength=network.config.num_experts)
                            for idx, _ in routing]))


if __name__ == "__main__":
    main()
