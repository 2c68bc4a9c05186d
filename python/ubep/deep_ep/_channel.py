"""A communicator whose leases end by themselves, so that calls may be made in any order."""

import os
import time
from typing import Any, Callable

import torch

from .. import _core
from .._errors import NotReady


class Channel:
    """A communicator, its slots and what is in them.

    Dispatch n takes slot n mod slots. What is still leased there loses its lease first, on all ranks
    alike, since all make the same calls; `lease` gives a handle a new one where it is needed. payload:
    name of 4 bytes that travel with each token of every dispatch; of cached ones they are zero.
    """

    def __init__(self, comm: _core.Communicator, number: int, payload: "str | None" = None) -> None:
        self.comm = comm
        self.max_tokens = max_tokens = comm.max_tokens
        self._number = number << 44
        self._slots: "list[tuple[_core.Handle, int, Callable[[], Any] | None] | None]" = [None] * comm.slots
        self._epoch = 0
        self._nothing = torch.zeros(max(max_tokens, 1), 1, dtype=torch.bfloat16)
        self._payloads = {payload: torch.zeros(max(max_tokens, 1), 1, dtype=torch.int32)} if payload else {}

    def next_tag(self) -> int:
        """A number of the next dispatch, unlike that of any other of the buffer; never 0."""
        return self._number + self._epoch + 1

    def nothing(self, num_tokens: int) -> torch.Tensor:
        """The narrowest rows, bfloat16 [num_tokens, 1]."""
        return self._nothing[:num_tokens]

    def _vacate(self) -> None:
        entry = self._slots[(self._epoch + 1) % len(self._slots)]
        if entry is None:
            return
        handle, epoch, finish = entry
        if finish is not None:
            finish()
        if handle.holds_lease and handle.epoch == epoch:
            self.comm.release(handle)

    def _keep(self, handle: _core.Handle, finish: "Callable[[], Any] | None" = None) -> _core.Handle:
        self._epoch = handle.epoch
        self._slots[self._epoch % len(self._slots)] = (handle, self._epoch, finish)
        return handle

    def when_vacated(self, handle: _core.Handle, finish: "Callable[[], Any]") -> None:
        """Before the slot of `handle` is taken by another dispatch, `finish` is called."""
        self._slots[handle.epoch % len(self._slots)] = (handle, handle.epoch, finish)

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor,
                 options: _core.DispatchOptions, payloads: "dict[str, Any] | None" = None) -> _core.Handle:
        """Communicator.dispatch into the next slot."""
        self._vacate()
        try:
            return self._keep(self.comm.dispatch(x, topk_idx, topk_weights, options=options, payloads=payloads))
        except BaseException as error:
            # A timeout, a signal's exception: the operation is still pending, in its slot.
            if getattr(error, "handle", None) is not None:
                self._keep(error.handle)
            raise

    def start_dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor,
                       options: _core.DispatchOptions) -> _core.Handle:
        """The same without waiting for rows; only, where it must, for the slot."""
        self._vacate()
        until = time.monotonic() + self.comm.timeout
        while True:
            try:
                return self._keep(self.comm.start_dispatch(x, topk_idx, topk_weights, options=options))
            except NotReady:
                if time.monotonic() > until:
                    raise
                if self.comm.step() == 0:
                    os.sched_yield()

    def dispatch_cached(self, x: torch.Tensor, handle: _core.Handle) -> None:
        """x [num_tokens of the handle, any] where the handle's dispatch sent its rows."""
        if handle.holds_lease:
            self.comm.release(handle)
        self._vacate()
        payloads = {name: zeros[: handle.num_tokens] for name, zeros in self._payloads.items()}
        self._keep(self.comm.dispatch_cached(x, handle, handle=handle, payloads=payloads or None))

    def lease(self, handle: _core.Handle) -> None:
        """Makes the handle ready for a combine."""
        if not handle.holds_lease:
            self.dispatch_cached(self.nothing(handle.num_tokens), handle)

    def release(self, handle: _core.Handle) -> None:
        """Ends the lease, if there is one."""
        if handle.holds_lease:
            self.comm.release(handle)
