"""What a handle of this package stands for: a native handle and the channel that it belongs to."""

from typing import Any, NamedTuple

import torch

from .. import _core
from .._errors import InvalidArgument
from ._channel import Channel

_NAME = "_ubep_route"


class Route(NamedTuple):
    """num_rows: received. shown: rows of the tensors that were returned, at least num_rows."""

    channel: Channel
    handle: _core.Handle
    num_rows: int
    shown: int


def attach(tensor: torch.Tensor, route: Any) -> torch.Tensor:
    """The tensor, which keeps the route: a tuple of tensors then is a handle, however often it is
    taken apart and put together."""
    setattr(tensor, _NAME, route)
    return tensor


def route_of(handle: Any) -> Any:
    """What was attached to the first tensor of a handle. Raises InvalidArgument."""
    route = getattr(handle[0], _NAME, None) if isinstance(handle, (tuple, list)) and handle else None
    if route is None:
        raise InvalidArgument("handle is none that a dispatch of this package has returned, or its first "
                              "tensor was copied: pass on what dispatch returned")
    return route


def refuse(reason: str, **arguments: Any) -> None:
    """Raises NotImplementedError that names the arguments that are set and would change results."""
    wanted = [f"{name}={value!r}" for name, value in arguments.items() if value]
    if wanted:
        raise NotImplementedError(f"{', '.join(wanted)}: {reason}")


def pack(x: torch.Tensor, scales: "torch.Tensor | None") -> torch.Tensor:
    """What travels: x, or bytes of 8-bit rows with their scales behind them."""
    if scales is None:
        return x
    if x.element_size() != 1 or scales.dim() != 2 or scales.size(0) != x.size(0) or scales.element_size() != 4:
        raise InvalidArgument(f"x is {x.dtype} {list(x.shape)} with scales {scales.dtype} {list(scales.shape)}, "
                              "expected 8-bit floats [num_tokens, hidden] and float32 or int32 [num_tokens, any]")
    return torch.cat((x.view(torch.uint8), scales.contiguous().view(torch.uint8)), dim=1)


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
