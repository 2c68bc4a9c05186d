"""Sequences through the model, in step with the other ranks."""

import time

import torch
import torch.nn.functional as F


class Sequence:
    def __init__(self, model, prompt, choose):
        self.prompt, self.cache, self.choose, self.chosen = prompt, model.new_cache(), choose, []

    def next_tokens(self):
        return self.chosen[-1:] or self.prompt


def logits_of(model, sequences, exchange, record=None):
    """One forward of each sequence's next tokens; logits [vocabulary] of the last of each.

    `exchange` sees all of a layer's tokens at once, also when there are none. `record` collects
    (layer, topk_idx, topk_weights).
    """
    tokens = [torch.tensor([s.next_tokens()]) for s in sequences]
    past = [0 if s.cache[0] is None else s.cache[0][0].shape[2] for s in sequences]
    positions = [model.positions(p, t.shape[1]) for p, t in zip(past, tokens)]
    xs = [model.weights["embed_tokens"][t] for t in tokens]
    none = model.weights["embed_tokens"].new_empty(0, model.config.hidden_size)
    for layer in range(model.config.num_hidden_layers):
        for i, (x, at, sequence) in enumerate(zip(xs, positions, sequences)):
            normed = model.norm(x, f"layers.{layer}.input_layernorm")
            xs[i] = x + model.attention(layer, normed, at, sequence.cache)
        rows = [model.norm(x, f"layers.{layer}.post_attention_layernorm")[0] for x in xs]
        hidden = torch.cat(rows) if rows else none
        idx, weights = model.route(layer, hidden)
        if record is not None:
            record.append((layer, idx, weights))
        sums = exchange(layer, hidden, idx, weights).split([len(r) for r in rows])
        xs = [x + y[None] for x, y in zip(xs, sums)]
    return [F.linear(model.norm(x[0, -1], "norm"), model.weights["embed_tokens"]) for x in xs]


class Server:
    """This rank's share of the sequences; the i-th prompt is that of rank i mod size.

    make_choose: called for each, gives a function of logits [1, vocabulary] to a token [1].
    """

    def __init__(self, model, rank, size, prompts, make_choose):
        self.model, self.size, self.prompts = model, size, prompts
        self.sequences = [Sequence(model, p, make_choose()) for p in prompts[rank::size]]

    @property
    def max_tokens(self):
        """Most tokens of a rank in one forward."""
        return max(max(map(len, self.prompts)), len(self.prompts[::self.size]))

    def prefill(self, exchange, record=None):
        """One prompt of each rank at a time."""
        for turn in range(0, len(self.prompts), self.size):
            now = self.prompts[turn:turn + self.size]
            exchange.begin([len(p) for p in now] + [0] * (self.size - len(now)))
            at = turn // self.size
            self.forward(self.sequences[at:at + 1], exchange, record)

    def step(self, exchange, record=None):
        """The next token of every sequence. Returns the seconds it took, and where they went."""
        exchange.begin([len(self.prompts[r::self.size]) for r in range(self.size)])
        exchange.reset()
        begin = time.perf_counter()
        self.forward(self.sequences, exchange, record)
        return time.perf_counter() - begin, dict(exchange.spent)

    @torch.no_grad()
    def forward(self, sequences, exchange, record):
        for sequence, logits in zip(sequences, logits_of(self.model, sequences, exchange, record)):
            sequence.chosen.append(int(sequence.choose(logits[None])))
