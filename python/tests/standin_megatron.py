"""A stand-in for Megatron-LM's MoE layer, which cannot be imported on a machine without its
accelerator stack. Written from its public interface: it makes the same calls of a token dispatcher with
the same kinds of arguments, and its experts apply the probabilities themselves."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F


class Group:
    """What is asked of a process group."""

    def __init__(self, ranks):
        self.ranks = ranks

    def size(self):
        return self.ranks


def config(num_experts, topk, **more):
    return SimpleNamespace(num_moe_experts=num_experts, moe_router_topk=topk, **more)


def groups(ep, expt_tp=1):
    return SimpleNamespace(ep=Group(ep), expt_tp=Group(expt_tp), tp_ep=Group(ep * expt_tp))


def route(x, gate, topk):
    """probs and routing_map [tokens, experts]: zero and False where an expert is not chosen."""
    scores = (x @ gate).softmax(dim=-1, dtype=torch.float32)
    values, chosen = scores.topk(topk, dim=1)
    routing_map = torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True)
    return torch.zeros_like(scores).scatter(1, chosen, values), routing_map


def grouped_mlp(rows, tokens_per_expert, probs, fc1, fc2):
    """Experts on rows that lie packed by expert; the probabilities go in before the last product."""
    assert tokens_per_expert.dtype == torch.int64 and int(tokens_per_expert.sum()) == len(rows) == len(probs)
    parts = [
        (F.silu(part @ fc1[e]) * p[:, None].to(part.dtype)) @ fc2[e]
        for e, (part, p) in enumerate(zip(rows.split(tokens_per_expert.tolist()),
                                          probs.split(tokens_per_expert.tolist())))
    ]
    return torch.cat(parts)


class StandInMoELayer:
    def __init__(self, dispatcher, gate, fc1, fc2, topk, older=False):
        self.token_dispatcher, self.gate, self.fc1, self.fc2 = dispatcher, gate, fc1, fc2
        self.topk, self.older = topk, older

    def __call__(self, hidden_states):
        """hidden_states [sequence, batch, hidden]."""
        d = self.token_dispatcher
        probs, routing_map = route(hidden_states.flatten(0, 1), self.gate, self.topk)
        if self.older:
            rows, counts, row_probs = d.token_permutation(hidden_states, probs, routing_map)
            output, bias = d.token_unpermutation(grouped_mlp(rows, counts, row_probs, self.fc1, self.fc2))
            assert bias is None
            return output
        hidden, probs = d.dispatch_preprocess(hidden_states, routing_map, probs)
        hidden, probs = d.token_dispatch(hidden, probs)
        rows, counts, row_probs = d.dispatch_postprocess(hidden, probs)
        assert d.get_expert_zero_copy_buffers() == (None, None)
        output = d.combine_preprocess(grouped_mlp(rows, counts, row_probs, self.fc1, self.fc2))
        return d.combine_postprocess(d.token_combine(output))


def dense_layer(hidden_states, gate, fc1, fc2, topk):
    """The same in one process, expert by expert."""
    x = hidden_states.flatten(0, 1)
    probs, routing_map = route(x, gate, topk)
    y = torch.zeros_like(x)
    for e in range(len(fc1)):
        at = routing_map[:, e].nonzero()[:, 0]
        y = y.index_add(0, at, (F.silu(x[at] @ fc1[e]) * probs[at, e, None]) @ fc2[e])
    return y.view_as(hidden_states)
