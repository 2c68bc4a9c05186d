"""Dispatch and combine as operators of PyTorch, with gradients, for torch.compile and eager mode.

The backward of dispatch is a combine without weights, the backward of combine a cached dispatch; both
run on all ranks, so all ranks must need the same gradients (docs/training.md). A handle travels
through a graph as a tensor `token`, int64 [1], whose memory keeps the handle alive. What the
operators return is memory of its own: rows are copied once.
"""

import itertools
import weakref
from typing import Any

import torch

from . import _core
from ._errors import Misuse
from .expert_parallel import plain_rows

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_layers: "weakref.WeakValueDictionary[str, Any]" = weakref.WeakValueDictionary()
_handles: "weakref.WeakValueDictionary[int, _core.Handle]" = weakref.WeakValueDictionary()


_numbers = itertools.count()


def register_layer(layer: Any) -> str:
    """A name by which the operators find an ExpertParallel again; compilers make no symbol of it."""
    key = f"layer{next(_numbers)}"
    _layers[key] = layer
    return key


def handle_of(token: torch.Tensor) -> _core.Handle:
    """The handle that a token names. Raises Misuse when it is gone."""
    handle = _handles.get(int(token))
    if handle is None:
        raise Misuse("the handle of this token is gone: it was copied, not passed on")
    return handle


def _token(handle: _core.Handle) -> torch.Tensor:
    token = _core._token(handle)
    _handles[int(token)] = handle
    return token


def _rows(handle: _core.Handle) -> torch.Tensor:
    """A copy of the received rows; zeros where nobody sent any, since a product with 0 may be NaN."""
    rows = plain_rows(handle)
    if handle.received.layout == _core.Layout.expert_padded:
        rows[handle.row_choices() < 0] = 0
    return rows


@torch.library.custom_op("ubep::dispatch", mutates_args=())
def dispatch(
    x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, layer: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows [N, hidden], expert_counts [Le], weights, index, token).

    Expert layouts: weights float32 [N], index int32 [N]: which choice k a row is, -1 = padding.
    rank_major: topk_weights float32 [N, K] and topk_idx int32 [N, K], local ids, -1 = not here.
    """
    ep = _layers[layer]
    handle = ep.comm.dispatch(x, topk_idx, topk_weights, options=ep.options)
    received = handle.received
    if received.layout == _core.Layout.rank_major:
        weights, index = received.topk_weights, received.topk_idx
    else:
        weights, index = handle.row_weights(), handle.row_choices()
    return _rows(handle), received.expert_counts, weights, index, _token(handle)


@dispatch.register_fake
def _(x: Any, topk_idx: Any, topk_weights: Any, layer: str) -> Any:
    ep = _layers[layer]
    num_rows: Any = ep.padded_rows
    if num_rows is None:
        num_rows = torch.library.get_ctx().new_dynamic_size()
    shape = (num_rows, topk_idx.shape[1]) if ep.is_rank_major else (num_rows,)
    return (
        x.new_empty(num_rows, x.shape[1]),
        x.new_empty(ep.comm.num_local_experts, dtype=torch.int32),
        x.new_empty(shape, dtype=torch.float32),
        x.new_empty(shape, dtype=torch.int32),
        x.new_empty(1, dtype=torch.int64),
    )


@torch.library.custom_op("ubep::combine", mutates_args=())
def combine(
    y: torch.Tensor, weights: torch.Tensor, token: torch.Tensor, num_tokens: int
) -> torch.Tensor:
    """[num_tokens, hidden of y]: outputs y [N, hidden] back at their tokens, weighted where the
    layout is one of experts. `weights` are those of dispatch: their gradients go through here."""
    handle = handle_of(token)
    return handle.communicator.combine(handle, y)


@combine.register_fake
def _(y: Any, weights: Any, token: Any, num_tokens: int) -> Any:
    return y.new_empty(num_tokens, y.shape[1])


@torch.library.custom_op("ubep::combine_unweighted", mutates_args=())
def combine_unweighted(
    y: torch.Tensor, weights: torch.Tensor, token: torch.Tensor, num_tokens: int
) -> torch.Tensor:
    """As combine, of outputs that are weighted already: plain sums."""
    handle = handle_of(token)
    return handle.communicator.combine(handle, y, unweighted=True)


@combine_unweighted.register_fake
def _(y: Any, weights: Any, token: Any, num_tokens: int) -> Any:
    return y.new_empty(num_tokens, y.shape[1])


@torch.library.custom_op("ubep::dispatch_cached", mutates_args=())
def dispatch_cached(
    x: torch.Tensor, num_rows: int, token: torch.Tensor, keep_lease: bool
) -> torch.Tensor:
    """Rows [num_rows, hidden of x] where those of the token's dispatch lay. keep_lease: for a
    combine_plain of the token that follows."""
    handle = handle_of(token)
    if handle.holds_lease:
        handle.communicator.release(handle)
    handle.communicator.dispatch_cached(x, handle, handle=handle)
    rows = _rows(handle)
    if not keep_lease:
        handle.communicator.release(handle)
    return rows


@dispatch_cached.register_fake
def _(x: Any, num_rows: int, token: Any, keep_lease: bool) -> Any:
    return x.new_empty(num_rows, x.shape[1])


@torch.library.custom_op("ubep::combine_plain", mutates_args=())
def combine_plain(y: torch.Tensor, token: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """[num_tokens, hidden of y]: sums of y [N, hidden] without weights."""
    handle = handle_of(token)
    if not handle.holds_lease:
        # Combine went before, and nobody needed its gradient.
        handle.communicator.dispatch_cached(y.new_zeros(num_tokens, 1), handle, handle=handle)
    return handle.communicator.combine(handle, y, unweighted=True)


@combine_plain.register_fake
def _(y: Any, token: Any, num_tokens: int) -> Any:
    return y.new_empty(num_tokens, y.shape[1])


def _dispatch_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, topk_idx, _, layer = inputs
    _, _, _, index, token = output
    ctx.mark_non_differentiable(output[1], index, token)
    ctx.save_for_backward(index, token)
    ctx.dtype, ctx.num_tokens, ctx.hidden = x.dtype, x.shape[0], x.shape[1]
    ctx.topk, ctx.grad_dtype = topk_idx.shape[1], _layers[layer].grad_dtype


def _dispatch_backward(ctx: Any, d_rows: Any, _counts: Any, d_weights: Any, *_: Any) -> Any:
    index, token = ctx.saved_tensors
    y = d_rows.to(ctx.grad_dtype)
    if ctx.needs_input_grad[2]:
        columns = d_weights.to(ctx.grad_dtype)
        if index.dim() == 1:
            # Each choice has a column of its own, so the sum over a token's rows keeps them apart.
            k = torch.arange(ctx.topk, dtype=index.dtype)
            columns = torch.where(index[:, None] == k, columns[:, None], 0)
        else:
            columns = torch.where(index >= 0, columns, 0)
        y = torch.cat([y, columns], dim=1)
    home = combine_plain(y.contiguous(), token, ctx.num_tokens)
    d_x = home[:, : ctx.hidden].to(ctx.dtype) if ctx.needs_input_grad[0] else None
    d_topk = home[:, ctx.hidden :].float() if ctx.needs_input_grad[2] else None
    return d_x, None, d_topk, None


def _combine_context(ctx: Any, inputs: Any, output: Any) -> None:
    y, weights, token, _ = inputs
    ctx.save_for_backward(y, weights, token)


def _combine_backward(ctx: Any, d_out: Any) -> Any:
    y, weights, token = ctx.saved_tensors
    # Weights that need a gradient are those of a dispatch whose backward comes next.
    g = dispatch_cached(d_out.contiguous(), y.shape[0], token, ctx.needs_input_grad[1])
    if weights.dim() == 2:
        return g.to(y.dtype), None, None, None
    d_y = (weights[:, None] * g).to(y.dtype) if ctx.needs_input_grad[0] else None
    d_weights = (g.float() * y.float()).sum(dim=1) if ctx.needs_input_grad[1] else None
    return d_y, d_weights, None, None


def _unweighted_context(ctx: Any, inputs: Any, output: Any) -> None:
    y, _, token, _ = inputs
    ctx.save_for_backward(token)
    ctx.num_rows, ctx.dtype = y.shape[0], y.dtype


def _unweighted_backward(ctx: Any, d_out: Any) -> Any:
    (token,) = ctx.saved_tensors
    # The dispatch's own backward comes next where it recorded gradients.
    g = dispatch_cached(d_out.contiguous(), ctx.num_rows, token, ctx.needs_input_grad[1])
    return g.to(ctx.dtype), None, None, None


torch.library.register_autograd("ubep::dispatch", _dispatch_backward, setup_context=_dispatch_context)
torch.library.register_autograd("ubep::combine", _combine_backward, setup_context=_combine_context)
torch.library.register_autograd(
    "ubep::combine_unweighted", _unweighted_backward, setup_context=_unweighted_context)
