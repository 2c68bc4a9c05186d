"""Random sequences of calls of ubep.deep_ep: the same on all ranks, which are late, look at handles and
drop them as they like."""

import gc
import random
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")

import ubep.deep_ep as deep_ep  # noqa: E402
from deep_ep_cases import case  # noqa: E402
from dist_ranks import run  # noqa: E402
from test_deep_ep import layout_args  # noqa: E402

EXPERTS, HIDDEN, TOPK, ROOM = 8, 64, 3, 24
# How many low-latency calls may lie between a dispatch and the end of its combine.
REACH = 3


class Sequence:
    """What is under way: `shared` decides what is called, `own` what else a rank does."""

    def __init__(self, group, seed):
        self.buffer = deep_ep.Buffer(group)
        self.elastic = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=ROOM)
        self.shared, self.own = random.Random(seed), random.Random(seed * 100 + self.buffer.rank)
        self.plain, self.expanded, self.arrived, self.hooks = [], [], [], []
        self.calls = 0

    def some(self, kept):
        return kept[self.shared.randrange(len(kept))]

    def tokens(self, most):
        counts = [self.shared.choice([0, 1, 5, most]) for _ in range(self.buffer.group_size)]
        return case(self.buffer.rank, counts[self.buffer.rank], HIDDEN, TOPK, EXPERTS, seed=self.shared.randrange(9999))

    def dispatch(self):
        x, idx, weights = self.tokens(self.shared.choice([ROOM, 70, 150]))
        args = layout_args(self.buffer, idx)
        rows, *_, handle, _ = self.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **args)
        if self.own.random() < 0.3:
            assert handle[0][-1, self.buffer.rank] == len(rows)
        self.plain.append((x, args["is_token_in_rank"].sum(1, keepdim=True), rows, handle))

    def dispatch_again(self):
        if self.plain:
            x, _, rows, handle = self.some(self.plain)
            assert torch.equal(self.buffer.dispatch(x, handle=handle)[0], rows)

    def combine(self):
        if self.plain:
            x, spread, rows, handle = self.some(self.plain)
            assert torch.equal(self.buffer.combine(rows, handle)[0].float(), x.float() * spread)

    def dispatch_expanded(self):
        x, idx, weights = self.tokens(ROOM)
        rows, _, _, handle, _ = self.elastic.dispatch(x, idx, weights, num_experts=EXPERTS, do_expand=True)
        self.expanded.append((x, (idx >= 0).sum(1, keepdim=True), rows, handle))

    def combine_expanded(self):
        if self.expanded:
            x, chosen, rows, handle = self.some(self.expanded)
            assert torch.equal(self.elastic.combine(rows, handle)[0].float(), x.float() * chosen)

    def call(self):
        """One more low-latency call: dispatches that it takes the memory of are forgotten."""
        self.calls += 1
        self.arrived = [a for a in self.arrived if self.calls - a[0] <= REACH]

    def low_latency_dispatch(self):
        self.call()
        x, idx, weights = self.tokens(ROOM)
        with_hook = self.shared.random() < 0.6
        found = self.buffer.low_latency_dispatch(x, idx, ROOM, EXPERTS, use_fp8=False, return_recv_hook=with_hook)
        self.arrived.append((self.calls, x, idx, weights, found))

    def low_latency_combine(self):
        self.call()
        if not self.arrived:
            return
        _, x, idx, weights, (rows, _, handle, _, hook) = self.arrived.pop(self.shared.randrange(len(self.arrived)))
        if hook is not None:
            hook()
        y = rows if self.shared.random() < 0.5 else rows.clone()
        out, _, hook = self.buffer.low_latency_combine(y, idx, weights, handle,
                                                       return_recv_hook=self.shared.random() < 0.6)
        expected = torch.where(idx >= 0, weights, 0).sum(1, keepdim=True) * x.float()
        self.hooks.append((hook or (lambda: None), out, expected))

    def finish(self):
        if self.hooks:
            hook, out, expected = self.hooks.pop(self.shared.randrange(len(self.hooks)))
            hook()
            assert torch.equal(out.float(), expected)

    def drop(self):
        for kept in (self.plain, self.expanded):
            if kept:
                kept.pop(self.shared.randrange(len(kept)))

    def step(self):
        getattr(self, self.shared.choice([
            "dispatch", "dispatch_again", "combine", "dispatch_expanded", "combine_expanded", "low_latency_dispatch",
            "low_latency_combine", "low_latency_combine", "finish", "drop"]))()
        if self.own.random() < 0.1:
            time.sleep(self.own.random() * 0.002)
        if self.own.random() < 0.01:
            gc.collect()


def sequence(group, seed, steps):
    made = Sequence(group, seed)
    for _ in range(steps):
        made.step()
    while made.hooks:
        made.finish()
    return made.calls


@pytest.mark.parametrize("size, seed", [(1, 1), (2, 2), (4, 3)])
def test_random_sequences(size, seed):
    found = run(size, sequence, seed, 150)
    assert found == [found[0]] * size and found[0] > 10
