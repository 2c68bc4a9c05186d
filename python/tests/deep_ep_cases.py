"""Tokens of every rank, and what a dispatch must bring: written down token by token."""

import torch


def calc_diff(a, b):
    """1 - 2 sum(ab) / sum(a^2 + b^2) of a + 1 and b + 1."""
    a, b = a.double() + 1, b.double() + 1
    norm = (a * a + b * b).sum()
    return 0.0 if norm == 0 else (1 - 2 * (a * b).sum() / norm).item()


def tensor_hash(*tensors):
    """One number that changes with any bit."""
    value = 0
    for t in tensors:
        data = t.contiguous().flatten().view(torch.uint8).long()
        value = (value * 1000003 + int((data * (torch.arange(data.numel()) % 8191 + 1)).sum())) % (1 << 61)
    return value


def case(rank, tokens, hidden=64, topk=3, experts=8, seed=0, masked=0.2):
    """x bfloat16 [tokens, hidden] of small whole numbers, topk_idx int64 with some -1, weights of 0.5 and
    1: their sums are the same bits in every order."""
    g = torch.Generator().manual_seed(seed * 1000 + rank)
    x = torch.randint(-2, 3, (tokens, hidden), generator=g).bfloat16()
    idx = torch.rand(tokens, experts, generator=g).argsort(1)[:, :topk].contiguous()
    idx[torch.rand(tokens, topk, generator=g) < masked] = -1
    weights = torch.where(torch.rand(tokens, topk, generator=g) < 0.5, 0.5, 1.0)
    return x, idx, weights


def received_tokens(cases, rank, experts):
    """(source, token) of what `rank` receives of all ranks' cases, in order."""
    local = experts // len(cases)
    return [(q, t) for q, (_, idx, _) in enumerate(cases) for t in range(idx.size(0))
            if any(e >= 0 and e // local == rank for e in idx[t].tolist())]


def received(cases, rank, experts):
    """x, local ids, weights (0 where the id is -1) of those tokens."""
    local = experts // len(cases)
    tokens = received_tokens(cases, rank, experts)
    x, idx, weights = ([case[i][t] for q, t in tokens for case in [cases[q]]] for i in range(3))
    if not tokens:
        return tuple(t[:0] for t in cases[0])
    x, idx, weights = torch.stack(x), torch.stack(idx), torch.stack(weights)
    is_here = (idx >= 0) & (idx // local == rank)
    return x, torch.where(is_here, idx - rank * local, -1), torch.where(is_here, weights, 0)


def dense_moe(x, idx, weights):
    """The layer in one process, where expert e gives (e + 1) * x."""
    return torch.where(idx >= 0, weights * (idx + 1), 0).sum(1, keepdim=True) * x.float()


def run_experts(x, idx, weights, first):
    """A rank's part: its experts on received rows, weighted and summed; `first` is its first expert."""
    factor = torch.where(idx >= 0, weights * (idx + first + 1), 0).sum(1, keepdim=True)
    return (factor * x.float()).to(x.dtype)


def to_fp8(x):
    """Rows as float8_e4m3fn and float32 scales, one for 128 columns."""
    blocks = x.float().unflatten(1, (-1, 128))
    amax = blocks.abs().amax(2).clamp(1e-4)
    values = (blocks * torch.div(torch.tensor(448.0), amax).unsqueeze(2)).to(torch.float8_e4m3fn).flatten(1)
    return values, amax / 448.0


def from_fp8(values, scales):
    """bfloat16 rows again; int32 scales hold four exponents each."""
    if scales.dtype == torch.int32:
        exponents = torch.stack([scales >> shift & 255 for shift in (0, 8, 16, 24)], -1).flatten(-2)
        scales = torch.exp2((exponents - 127).float())
    blocks = values.float().unflatten(-1, (-1, 128)) * scales.unsqueeze(-1)
    return blocks.flatten(-2).bfloat16()
