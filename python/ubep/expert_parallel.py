"""What a model's MoE layer holds: a communicator with the options of its dispatches."""

import os
import sys
import time
from typing import Any, Callable, NamedTuple

from . import _core
from ._bootstrap import init
from ._errors import Misuse, NotReady

_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "half": "fp16", "float": "fp32"}
# Not topk1 and weighting: the operators' gradients are those of one row per choice, or per token.
_OPTIONS = ("path", "reduction", "in_place", "contiguous", "expert_alignment", "quant")


def _dtype_name(dtype: Any) -> Any:
    """"bf16" of torch.bfloat16, ml_dtypes.bfloat16, "bfloat16" or "bf16"."""
    if isinstance(dtype, (str, _core.DType)):
        name = dtype
    else:
        name = getattr(dtype, "__name__", None) or str(dtype).rsplit(".", 1)[-1]
    return _DTYPES.get(name, name)


class Dispatched(NamedTuple):
    """What an owner received, and what brings its outputs back.

    rows: [N, hidden] of x's dtype, also where they were quantised on their way. expert_counts: int32 [local experts]. weights, index: of expert layouts float32
    and int32 [N], the top-k weight of each row and which choice k it is (-1 = padding); of rank_major
    [N, topk], weights and local expert ids (-1 = not here). handle: a Handle, or within a graph a
    tensor that names one. num_tokens: of this rank's x.
    """

    rows: Any
    expert_counts: Any
    weights: Any
    index: Any
    handle: Any
    num_tokens: int


def plain_rows(handle: _core.Handle) -> Any:
    """A copy of the received rows in the dtype that they were sent in."""
    received = handle.received
    rows = received.copy_rows()
    if received.quant == _core.Quant.none:
        return rows
    return _core.dequantize(rows, received.quant, received.hidden, received.dtype)


def _tensor_module(x: Any) -> Any:
    """torch where x is a tensor, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else None


class ExpertParallel:
    """Dispatch and combine of one MoE layer, or of all layers that share a communicator.

        ep = ubep.ExpertParallel(num_experts=64, hidden=1024, topk=8, max_tokens=512)
        d = ep.dispatch(x, topk_idx, topk_weights)
        y = ep.combine(experts(d.rows, d.expert_counts), d)

    x [num_tokens, hidden], topk_idx [num_tokens, topk] (-1 = none), topk_weights float32. Where
    PyTorch records gradients, and within torch.compile, both are operators with gradients for x,
    topk_weights and the experts (ubep.torch_ops). Otherwise (arrays, torch.no_grad()) rows are a
    view, without a copy, until combine. All ranks make the same calls in the same order, backward
    included.

    training: leaves room for gradients, rows of hidden + topk elements of `grad_dtype`.
    comm: an existing communicator instead of a new one. Other options are those of
    Communicator.create and DispatchOptions.
    """

    def __init__(self, *, num_experts: int = 0, hidden: int = 0, topk: int = 8, max_tokens: int = 0,
                 dtype: Any = "bf16", training: bool = False, grad_dtype: Any = "fp32",
                 layout: Any = "expert_major", bootstrap: "_core.Bootstrap | None" = None,
                 comm: "_core.Communicator | None" = None, **options: Any) -> None:
        chosen = {name: options.pop(name) for name in _OPTIONS if name in options}
        if comm is None:
            room = dict(max_hidden=hidden, max_dtype=_dtype_name(dtype))
            if training:
                room = dict(max_hidden=hidden + topk, max_dtype="fp32")
            comm = init(bootstrap, num_experts=num_experts, max_tokens=max_tokens, max_topk=topk,
                        **room, **options)
        elif options:
            raise TypeError(f"with comm, unexpected options: {', '.join(options)}")
        self.comm = comm
        self.options = _core.DispatchOptions(layout=layout, **chosen)
        self.is_rank_major = self.options.layout == _core.Layout.rank_major
        is_padded = self.options.layout == _core.Layout.expert_padded
        capacity = options.get("expert_capacity", 0)
        self.padded_rows = comm.num_local_experts * capacity if is_padded and capacity else None
        self._grad_dtype = _dtype_name(grad_dtype)
        self.grad_dtype: Any = None
        self._key = ""
        if "torch" in sys.modules:
            self._register()

    def _register(self) -> None:
        from . import torch_ops

        self.grad_dtype = torch_ops.DTYPES[self._grad_dtype]
        self._key = torch_ops.register_layer(self)

    def _in_graph(self, x: Any) -> bool:
        torch = _tensor_module(x)
        if torch is None or not (torch.compiler.is_compiling() or torch.is_grad_enabled()):
            return False
        if not self._key:
            self._register()
        return True

    def dispatch(self, x: Any, topk_idx: Any, topk_weights: Any, *,
                 handle: "_core.Handle | None" = None) -> Dispatched:
        """Sends x to the owners of its experts; waits for what others send here."""
        if self._in_graph(x):
            from . import torch_ops

            found = torch_ops.dispatch(x, topk_idx, topk_weights, self._key)
            return Dispatched(*found, x.shape[0])
        return self._shown(self.comm.dispatch(x, topk_idx, topk_weights, handle=handle,
                                              options=self.options))

    def combine(self, y: Any, dispatched: Dispatched, *, out: Any = None, added: Any = (),
                unweighted: bool = False) -> Any:
        """[num_tokens, hidden]: the sums of the expert outputs y, one row for each of
        dispatched.rows; None = they were written to handle.expert_output. unweighted: y is weighted
        already (by dispatched.weights), where the layout would have it weighted here. out, added: as
        Communicator.combine, not within a graph."""
        if isinstance(dispatched.handle, _core.Handle):
            torch = _tensor_module(y)
            if torch is not None and y.requires_grad and torch.is_grad_enabled():
                raise Misuse("y needs a gradient, expected none: its dispatch recorded none")
            return self.comm.combine(dispatched.handle, y, out=out, added=added, unweighted=unweighted)
        from . import torch_ops

        if out is not None or len(added) > 0:
            raise TypeError("combine() within a graph takes neither out nor added")
        call = torch_ops.combine_unweighted if unweighted else torch_ops.combine
        return call(y, dispatched.weights, dispatched.handle, dispatched.num_tokens)

    def layer(self, x: Any, topk_idx: Any, topk_weights: Any,
              experts: "Callable[[Any, Any], Any]") -> Any:
        """dispatch, y = experts(rows, expert_counts), combine."""
        dispatched = self.dispatch(x, topk_idx, topk_weights)
        return self.combine(experts(dispatched.rows, dispatched.expert_counts), dispatched)

    def start_dispatch(self, x: Any, topk_idx: Any, topk_weights: Any, *,
                       handle: "_core.Handle | None" = None) -> _core.Handle:
        """Without gradients, and without waiting for rows; only, where it must, until peers have
        given a slot back. wait(handle) then gives what was received."""
        until = time.monotonic() + self.comm.timeout
        while True:
            try:
                return self.comm.start_dispatch(x, topk_idx, topk_weights, handle=handle,
                                                options=self.options)
            except NotReady:
                if time.monotonic() > until:
                    raise
                if self.comm.step() == 0:
                    os.sched_yield()

    def start_combine(self, y: Any, dispatched: Dispatched, *, out: Any = None) -> Any:
        """Without waiting and without gradients: the result is there after finish()."""
        return self.comm.start_combine(dispatched.handle, y, out=out)

    def step(self) -> int:
        """Moves what was started on; 0 = nothing to do right now."""
        return self.comm.step()

    def wait(self, handle: _core.Handle, timeout: "float | None" = None) -> Dispatched:
        """What a started dispatch received."""
        self.comm.wait(handle, timeout)
        return self._shown(handle)

    def finish(self, dispatched: Dispatched, timeout: "float | None" = None) -> None:
        """Waits for a started combine."""
        self.comm.wait(dispatched.handle, timeout)

    def stats(self, dispatched: Dispatched) -> _core.OperationStats:
        """Path, reason and bytes copied."""
        handle = dispatched.handle
        if not isinstance(handle, _core.Handle):
            from . import torch_ops

            handle = torch_ops.handle_of(handle)
        return handle.stats

    def close(self) -> None:
        self.comm.close()

    def _shown(self, handle: _core.Handle) -> Dispatched:
        received = handle.received
        if self.is_rank_major:
            weights, index = received.topk_weights, received.topk_idx
        else:
            weights, index = handle.row_weights(), handle.row_choices()
        if received.quant != _core.Quant.none:
            rows = plain_rows(handle)
        else:
            try:
                rows = received.rows
            except Misuse:
                rows = received.copy_rows()
        return Dispatched(rows, received.expert_counts, weights, index, handle, handle.num_tokens)
