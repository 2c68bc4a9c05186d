"""What a handle of this package stands for: a native handle and the channel that it belongs to."""

from typing import Any, Callable, Iterator, NamedTuple

from .. import _core
from .._errors import InvalidArgument
from ._channel import Channel

class Route(NamedTuple):
    """num_rows: received. shown: rows of the tensors that were returned, at least num_rows."""

    channel: Channel
    handle: _core.Handle
    num_rows: int
    shown: int


class LazyTuple(tuple):
    """A handle: a tuple whose items are made when one is looked at, since hardly anyone does.

    route: what it stands for. The first item, a tensor, keeps it too: whatever tuple or list holds that
    tensor is a handle as well.
    """

    route: Any
    _make: "Callable[[], tuple[Any, ...]]"
    _made: "tuple[Any, ...] | None"

    def __new__(cls, size: int, route: Any, make: "Callable[[], tuple[Any, ...]]") -> "LazyTuple":
        self = super().__new__(cls, (None,) * size)
        self.route, self._make, self._made = route, make, None
        return self

    def _items(self) -> "tuple[Any, ...]":
        if self._made is None:
            self._made = self._make()
            self._made[0]._ubep_route = self.route
        return self._made

    def __getitem__(self, index: Any) -> Any:
        return self._items()[index]

    def __iter__(self) -> "Iterator[Any]":
        return iter(self._items())

    def __repr__(self) -> str:
        return repr(self._items())

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def route_of(handle: Any) -> Any:
    """What a handle stands for. Raises InvalidArgument."""
    if isinstance(handle, LazyTuple):
        return handle.route
    route = getattr(handle[0], "_ubep_route", None) if isinstance(handle, (tuple, list)) and handle else None
    if route is None:
        raise InvalidArgument("handle is none that a dispatch of this package has returned, or its first "
                              "tensor was copied: pass on what dispatch returned")
    return route


def refuse(reason: str, **arguments: Any) -> None:
    """Raises NotImplementedError that names the arguments that are given and would change results."""
    given = [name for name, value in arguments.items() if value is not None and value is not False]
    if given:
        raise NotImplementedError(f"{', '.join(given)}: {reason}")
