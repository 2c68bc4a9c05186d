"""A forward of the checkpoint in plain PyTorch, whose experts can lie anywhere.

`TinyMoe(folder)` reads a checkpoint of the Qwen3-MoE layout and computes what transformers does
with attn_implementation="eager" and experts_implementation="eager": the same operations in the
same order, so the logits are the same to the last bit in float32 (reference.py checks it).

Where the experts are is the business of `moe`, a function that replaces the default one:

    moe(layer, hidden [T, H], topk_idx [T, K], topk_weights [T, K]) -> [T, H]

It returns, for each token, the sum of its experts' outputs times their weights. One process of
several has `Experts.load(folder, layer, first, last)`: some of a layer's experts. Rows
[N, H] that reach it have local ids [N, K], -1 for experts elsewhere, and weights [N, K];
`Experts.sums` adds up what these experts give to each row, and `Experts.rows` is one expert's
output without a weight. `sharded` is such a division in one process, to try it.

Sums of floats depend on their order. Transformers adds a token's experts in the order of their
numbers, into a zero, in the dtype of the hidden states; `Experts.sums` does that within its range.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open


@dataclass(frozen=True)
class Config:
    """What the forward needs of config.json, under the names there."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    rms_norm_eps: float
    rope_theta: float
    eos_token_id: int

    @classmethod
    def load(cls, folder):
        read = json.loads((Path(folder) / "config.json").read_text())
        return cls(**{name: read[name] for name in cls.__dataclass_fields__})


def open_weights(folder):
    return safe_open(Path(folder) / "model.safetensors", framework="pt")


class Experts:
    """Experts [first, last) of a layer: gate_up [E, 2I, H], down [E, H, I]."""

    def __init__(self, gate_up, down):
        self.gate_up, self.down = gate_up, down

    @classmethod
    def load(cls, folder, layer, first, last, dtype=torch.float32):
        def read(file, expert, part):
            name = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
            return file.get_tensor(name).to(dtype)

        with open_weights(folder) as file:
            ids = range(first, last)
            gate_up = [torch.cat((read(file, e, "gate"), read(file, e, "up"))) for e in ids]
            down = [read(file, e, "down") for e in ids]
        return cls(torch.stack(gate_up), torch.stack(down))

    def rows(self, hidden, expert):
        """Outputs [N, H] of one expert (its local number) for the rows `hidden` [N, H]."""
        gate, up = F.linear(hidden, self.gate_up[expert]).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down[expert])

    def sums(self, hidden, local_idx, weights):
        """The weighted sums [N, H] of what these experts give to the rows `hidden` [N, H].

        local_idx [N, K] is each row's experts, by their local numbers (others: elsewhere), and
        weights [N, K] what their outputs are multiplied by.
        """
        out = torch.zeros_like(hidden)
        for expert in range(len(self.down)):
            choice, row = torch.where((local_idx == expert).T)
            if len(row):
                result = self.rows(hidden[row], expert) * weights[row, choice, None]
                out.index_add_(0, row, result.to(out.dtype))
        return out


def local(folder, config, dtype=torch.float32):
    """The default `moe`: all experts in this process."""
    layers = [Experts.load(folder, i, 0, config.num_experts, dtype)
              for i in range(config.num_hidden_layers)]
    return lambda layer, hidden, idx, weights: layers[layer].sums(hidden, idx, weights)


def sharded(folder, config, num_ranks, dtype=torch.float32):
    """A `moe` as `num_ranks` ranks would compute it: each the sums of its experts, then added."""
    each = config.num_experts // num_ranks
    assert each * num_ranks == config.num_experts
    ranks = [[Experts.load(folder, i, r * each, (r + 1) * each, dtype)
              for i in range(config.num_hidden_layers)] for r in range(num_ranks)]

    def moe(layer, hidden, topk_idx, topk_weights):
        out = torch.zeros_like(hidden)
        for r, layers in enumerate(ranks):
            local_idx = topk_idx - r * each
            local_idx[(local_idx < 0) | (local_idx >= each)] = -1
            mine = (local_idx >= 0).any(1)  # the rows that reach this rank
            out[mine] += layers[layer].sums(hidden[mine], local_idx[mine], topk_weights[mine])
        return out

    return moe


def rms_norm(x, weight, eps):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class TinyMoe:
    """The model, for batches of sequences of equal length. Not for training."""

    def __init__(self, folder, dtype=torch.float32, moe=None):
        self.config = Config.load(folder)
        self.dtype = dtype
        self.moe = moe or local(folder, self.config, dtype)
        with open_weights(folder) as file:
            self.weights = {name.removesuffix(".weight").removeprefix("model."):
                            file.get_tensor(name).to(dtype)
                            for name in file.keys() if ".experts." not in name}

    def norm(self, x, name):
        return rms_norm(x, self.weights[name], self.config.rms_norm_eps)

    def positions(self, first, count):
        """cos and sin [count, head_dim] of the positions from `first`."""
        dim = self.config.head_dim
        rates = 1.0 / self.config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)
        angles = torch.arange(first, first + count).float()[:, None] * rates
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def attention(self, layer, x, positions, cache):
        """x [B, T, H]; `cache` is this layer's keys and values [B, heads, tokens, head_dim]."""
        c, name = self.config, f"layers.{layer}.self_attn"
        shape = (*x.shape[:2], -1, c.head_dim)
        q, k, v = (F.linear(x, self.weights[f"{name}.{part}_proj"]).view(shape) for part in "qkv")
        q = rotate(self.norm(q, f"{name}.q_norm").transpose(1, 2), *positions)
        k = rotate(self.norm(k, f"{name}.k_norm").transpose(1, 2), *positions)
        v = v.transpose(1, 2)
        if cache[layer] is not None:
            k, v = torch.cat((cache[layer][0], k), -2), torch.cat((cache[layer][1], v), -2)
        cache[layer] = k, v
        repeats = c.num_attention_heads // c.num_key_value_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        scores = torch.matmul(q, k.transpose(2, 3)) * c.head_dim**-0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        y = torch.matmul(scores.softmax(-1, dtype=torch.float32).to(q.dtype), v)
        return F.linear(y.transpose(1, 2).flatten(2), self.weights[f"{name}.o_proj"])

    def route(self, layer, hidden):
        """The router: experts [T, K] of the rows [T, H], the best first, and their weights."""
        logits = F.linear(hidden, self.weights[f"layers.{layer}.mlp.gate"])
        probs = logits.softmax(-1, dtype=torch.float32)
        weights, idx = probs.topk(self.config.num_experts_per_tok, dim=-1)
        if self.config.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return idx, weights.to(hidden.dtype)

    @torch.no_grad()
    def forward(self, tokens, cache=None, last_only=False):
        """Logits [B, T, vocabulary] of the tokens [B, T], or [B, 1, vocabulary] of the last.

        `cache` is what `new_cache` gave; it grows by these tokens, which follow those it has.
        """
        cache = self.new_cache() if cache is None else cache
        past = 0 if cache[0] is None else cache[0][0].shape[2]
        positions = self.positions(past, tokens.shape[1])
        x = self.weights["embed_tokens"][tokens]
        for i in range(self.config.num_hidden_layers):
            normed = self.norm(x, f"layers.{i}.input_layernorm")
            x = x + self.attention(i, normed, positions, cache)
            rows = self.norm(x, f"layers.{i}.post_attention_layernorm").flatten(0, 1)
            x = x + self.moe(i, rows, *self.route(i, rows)).view(x.shape)
        x = self.norm(x, "norm")
        return F.linear(x[:, -1:] if last_only else x, self.weights["embed_tokens"])

    def new_cache(self):
        return [None] * self.config.num_hidden_layers

    def generate(self, tokens, count, choose=lambda logits: logits.argmax(-1)):
        """`count` tokens [B, count] after tokens [B, T], chosen from logits [B, vocabulary]."""
        cache, chosen = self.new_cache(), []
        for _ in range(count):
            logits = self.forward(tokens, cache, last_only=True)[:, -1]
            tokens = choose(logits)[:, None]
            chosen.append(tokens)
        return torch.cat(chosen, 1)


def sampler(temperature, seed):
    """A `choose` for `generate` that draws from softmax(logits / temperature)."""
    random = torch.Generator().manual_seed(seed)

    def choose(logits):
        probs = (logits.float() / temperature).softmax(-1)
        return torch.multinomial(probs, 1, generator=random)[:, 0]

    return choose
