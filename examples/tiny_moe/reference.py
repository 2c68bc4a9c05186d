"""Holds ubep.generate.model against transformers, on greedy continuations of a few prompts.

    python reference.py [--tokens 240] [--ranks 2 4 8]

It checks, in float32 and on one thread:
- transformers, twice, chooses the same tokens, with its default kernels too;
- ubep.generate.model has the same logits as transformers to the last bit, and so the same tokens;
- with the experts divided among ranks, ubep.generate.model still chooses the same tokens, and draws the same
  when it samples;
- each expert of each layer is used in text that the model samples.

It prints how near the second best token came to the best (the margin, in logits), and how far the
logits of divided experts are from the whole: tokens differ when a difference reaches a margin.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ubep.generate import model

FOLDER = Path(__file__).with_name("model")
TEMPERATURE, SEED = 0.7, 1  # of sampled text
PROMPTS = (
    "Mr. Darcy smiled, and",
    "The morning was fine, and Emma",
    "CHAPTER I\n",
    "\"My dear Fanny,\" said he,",
    "She had never been so happy; but",
    "Captain Wentworth walked to the window.",
)


def reference(prompt, count, **implementation):
    """Tokens [count] and logits [count, vocabulary] of greedy generation in transformers."""
    network = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, **implementation)
    network.generation_config.eos_token_id = None  # goes on to `count`
    out = network.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count,
                           do_sample=False, output_logits=True, return_dict_in_generate=True)
    return out.sequences[0, prompt.shape[1]:], torch.cat(out.logits)


def ours(network, prompt, count):
    """The same from ubep.generate.model."""
    seen = []

    def choose(logits):
        seen.append(logits)
        return logits.argmax(-1)

    return network.generate(prompt, count, choose)[0], torch.cat(seen)


def compare(tokenizer, ranks, count):
    """Runs all prompts and prints a line for each; True when all is equal that should be."""
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    whole = model.TinyMoe(FOLDER)
    divided = {r: model.TinyMoe(FOLDER, moe=model.sharded(FOLDER, whole.config, r)) for r in ranks}
    good = True
    for text in PROMPTS:
        prompt = tokenizer(text, return_tensors="pt").input_ids
        tokens, logits = reference(prompt, count, **eager)
        again, _ = reference(prompt, count, **eager)
        default, _ = reference(prompt, count)
        mine, my_logits = ours(whole, prompt, count)
        best = logits.topk(2).values
        margin = (best[:, 0] - best[:, 1]).min().item()
        checks = {"repeated": torch.equal(tokens, again), "default": torch.equal(tokens, default),
                  "tokens": torch.equal(tokens, mine), "bits": torch.equal(logits, my_logits)}
        off = 0.0
        sample = whole.generate(prompt, count, model.sampler(TEMPERATURE, SEED))
        for r, network in divided.items():
            chosen, with_ranks = ours(network, prompt, count)
            checks[f"{r} ranks"] = torch.equal(tokens, chosen)
            drawn = network.generate(prompt, count, model.sampler(TEMPERATURE, SEED))
            checks[f"{r} ranks, sampled"] = torch.equal(sample, drawn)
            off = max(off, (with_ranks - logits).abs().max().item())
        failed = [name for name, passed in checks.items() if not passed]
        good = good and not failed
        print(f"{text!r}: {count} tokens, {len(tokens.unique())} different, smallest margin "
              f"{margin:.2e}, divided experts {off:.1e} off: "
              f"{'FAILED ' + ', '.join(failed) if failed else 'equal'}")
    return good


def load_of_samples(tokenizer, count):
    """How often each expert is chosen [layers, experts] in sampled text."""
    network = model.TinyMoe(FOLDER)
    c = network.config
    load = torch.zeros(c.num_hidden_layers, c.num_experts, dtype=torch.long)
    experts = network.moe

    def counting(layer, hidden, topk_idx, topk_weights):
        load[layer] += torch.bincount(topk_idx.flatten(), minlength=c.num_experts)
        return experts(layer, hidden, topk_idx, topk_weights)

    network.moe = counting
    for text in PROMPTS:
        prompt = tokenizer(text, return_tensors="pt").input_ids
        sample = network.generate(prompt, count, model.sampler(TEMPERATURE, SEED))
        if text is PROMPTS[0]:
            print(f"\ntemperature {TEMPERATURE}: {text}{tokenizer.decode(sample[0])}\n")
    return load


def print_load(load):
    for layer, counts in enumerate(load):
        mean = counts.float().mean().item()
        print(f"layer {layer}: {int((counts == 0).sum())} experts unused, load / mean "
              f"{counts.min() / mean:.2f} to {counts.max() / mean:.2f}: "
              f"{' '.join(str(n) for n in counts.tolist())}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=240)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    good = compare(tokenizer, args.ranks, args.tokens)
    load = load_of_samples(tokenizer, args.tokens)
    print_load(load)
    if not good or (load == 0).any():
        raise SystemExit("not as it should be")


if __name__ == "__main__":
    main()
