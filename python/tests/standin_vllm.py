"""A stand-in for vLLM's modular MoE kernel, which is not installed here. Written from its public
interface: it calls a prepare/finalize object with the same arguments, and has experts of the kinds that
it knows: those that weight and sum themselves, and those that leave it to finalize."""

import torch
import torch.nn.functional as F

NUM_EXPERTS = 6


class StandInBase:
    """In the place of the abstract base class: what is called must be there."""

    def __init__(self, moe_config, quant_config):
        raise AssertionError("not called by an adapter that keeps both itself")


class NoOp:
    """Of experts that have weighted and summed: their output goes on as it is."""

    def apply(self, output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input):
        assert output is None and fused_expert_output.dim() == 2
        return fused_expert_output


class StandInDelegate:
    """Of experts that leave both to finalize."""

    def apply(self, *args, **kwargs):
        raise AssertionError("finalize does this itself")


def expert(x, w1, w2):
    gate, up = F.linear(x, w1).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, w2)


def fused(rows, ids, weights, w1, w2, on_input, out=None):
    """[M, hidden]: weighted and summed over the choices that are not -1, as kernels for CPUs do."""
    out = torch.empty_like(rows) if out is None else out
    sums = torch.zeros(rows.shape, dtype=torch.float32)
    for i in range(len(rows)):
        for e, w in zip(ids[i].tolist(), weights[i].tolist()):
            if e >= 0:
                sums[i] += (1 if on_input else w) * expert(rows[i], w1[e], w2[e]).float()
    out.copy_(sums)
    return out


def unfused(rows, ids, w1, w2):
    """[M, topk, hidden], not weighted; anything where the id is -1."""
    y = torch.full((*ids.shape, rows.shape[1]), float("nan"), dtype=rows.dtype)
    for i, k in (ids >= 0).nonzero().tolist():
        y[i, k] = expert(rows[i], w1[ids[i, k]], w2[ids[i, k]])
    return y


class StandInModularKernel:
    """One layer: prepare, experts, finalize. local(e): row of w1 and w2 for the id e."""

    def __init__(self, prepare_finalize, w1, w2, *, kind="fused", asynchronous=False, expert_map=None,
                 between=lambda: None):
        self.pf, self.w1, self.w2, self.kind = prepare_finalize, w1, w2, kind
        self.asynchronous, self.expert_map, self.between = asynchronous, expert_map, between

    def __call__(self, hidden_states, topk_weights, topk_ids, on_input=False):
        output = torch.empty_like(hidden_states)
        topk_ids = topk_ids.to(self.pf.topk_indices_dtype())
        given = (hidden_states, topk_weights, topk_ids, NUM_EXPERTS, self.expert_map, on_input, None)
        if self.asynchronous:
            assert self.pf.supports_async()
            found = self.pf.prepare_async(*given, defer_input_quant=False)
            self.between()
            found = found()
        else:
            found = self.pf.prepare(*given, defer_input_quant=False)
        rows, scales, counts, ids, weights = found
        assert scales is None and ids.dtype == torch.int32 and weights.dtype == torch.float32
        local = ids
        if self.expert_map is not None:
            local = torch.where(ids >= 0, self.expert_map[ids.long().clamp(min=0)], -1)
        assert torch.equal(counts.expert_num_tokens,
                           local[local >= 0].bincount(minlength=len(self.w1)).int())
        if rows.shape[0] == 0:
            y = torch.empty_like(rows)
        elif self.kind == "unfused":
            y = unfused(rows, local, self.w1, self.w2)
        else:
            into = self.pf.allocate_fused_expert_output(rows.shape, rows.dtype, rows.device, NoOp())
            if into is None:
                into = output if output.shape == rows.shape else rows if self.kind == "in place" else None
            y = fused(rows, local, weights, self.w1, self.w2, on_input, into)
        reduce = StandInDelegate() if self.kind == "unfused" else NoOp()
        if self.asynchronous:
            self.pf.finalize_async(output, y, weights, ids, on_input, reduce)()
        else:
            self.pf.finalize(output, y, weights, ids, on_input, reduce)
        return output


def dense(hidden_states, topk_weights, topk_ids, w1, w2, on_input=False):
    if on_input:
        hidden_states, topk_weights = hidden_states * topk_weights, torch.ones_like(topk_weights)
    return fused(hidden_states, topk_ids, topk_weights, w1, w2, False)
