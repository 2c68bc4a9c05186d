"""Rows on their way: 8-bit rows with their scales, copies of what was received, biases."""

from typing import Any

import torch

from .. import _core
from .._errors import InvalidArgument

_DTYPES = {_core.DType.bf16: torch.bfloat16, _core.DType.fp16: torch.float16, _core.DType.fp32: torch.float32,
           _core.DType.u8: torch.uint8}
_WHOLE = (torch.bfloat16, torch.float16, torch.float32)


def pack(x: torch.Tensor, scales: "torch.Tensor | None") -> torch.Tensor:
    """What travels: x, or bytes of 8-bit rows with their scales behind them."""
    if x.dim() != 2 or (x.dtype not in _WHOLE and x.element_size() != 1):
        raise InvalidArgument(f"x is {x.dtype} {list(x.shape)}, expected bfloat16, float16, float32 or 8-bit "
                              "[num_tokens, hidden]")
    if scales is None:
        return x
    if x.element_size() != 1 or scales.dim() != 2 or scales.size(0) != x.size(0) or scales.element_size() != 4:
        raise InvalidArgument(f"x is {x.dtype} {list(x.shape)} with scales {scales.dtype} {list(scales.shape)}, "
                              "expected 8-bit floats [num_tokens, hidden] and float32 or int32 [num_tokens, any]")
    return torch.cat((x.view(torch.uint8), scales.contiguous().view(torch.uint8)), dim=1)


def row_bytes(x: torch.Tensor, sent: torch.Tensor, topk_idx: torch.Tensor) -> int:
    """Room for a row as it is sent, for outputs of at least 16 bits, and for weights."""
    return max(x.size(1) * max(x.element_size(), 2), sent.size(1) * sent.element_size(), 4 * topk_idx.size(1))


def unpack(rows: torch.Tensor, x: torch.Tensor, scales: "torch.Tensor | None") -> Any:
    """Received rows in the form of (x, scales)."""
    if scales is None:
        return rows
    hidden = x.size(1)
    return (rows[:, :hidden].contiguous().view(x.dtype),
            rows[:, hidden:].contiguous().view(scales.dtype))


def two_biases(bias: Any) -> "tuple[torch.Tensor, ...]":
    """Matrices to add, of None, a tensor or a pair of which either may be None."""
    if bias is None:
        return ()
    if isinstance(bias, torch.Tensor):
        return (bias,)
    if not isinstance(bias, tuple) or len(bias) != 2:
        raise InvalidArgument(f"bias is a {type(bias).__name__}, expected None, a tensor or a pair of tensors")
    return tuple(b for b in bias if b is not None)


def take_rows(native: _core.Handle, shown: int) -> torch.Tensor:
    """The received rows, copied to `shown` rows; what lies behind them is undefined."""
    received = native.received
    if shown == received.num_rows:
        return received.copy_rows()
    rows = torch.empty(shown, received.hidden, dtype=_DTYPES[received.dtype])
    received.copy_rows(rows[: received.num_rows])
    return rows


def padded(values: torch.Tensor, shown: int, fill: int) -> torch.Tensor:
    """values [rows, ..], with rows of `fill` behind them."""
    if shown == values.size(0):
        return values
    longer = values.new_full((shown, *values.shape[1:]), fill)
    longer[: values.size(0)] = values
    return longer
