"""The prepare and finalize steps that vLLM's modular MoE kernels put around their experts.

    rows, scales, counts, ids, weights = pf.prepare(a1, topk_weights, topk_ids, num_experts, ...)
    y = experts(rows, ids, weights)
    pf.finalize(output, y, weights, ids, ...)

Rows are sent once to each rank that has one of their experts, as they are. Nothing of vLLM is
imported; where its base class is asked for, derive from both:

    class Ours(PrepareAndFinalize, mk.FusedMoEPrepareAndFinalizeModular): pass
"""

import os
import time
from typing import Any, Callable, NamedTuple

import torch

from .._core import Communicator, DispatchOptions, Handle
from .._errors import InvalidArgument, Misuse, NotReady


class ExpertTokens(NamedTuple):
    """Rows of each local expert, int32 [local experts]; both are the same tensor."""

    expert_num_tokens: torch.Tensor
    expert_num_tokens_cpu: torch.Tensor
    psum_recv_per_rank: "torch.Tensor | None" = None


def weighted_sums(y: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
    """[rows, hidden] of one output for each choice, y [rows, topk, hidden] or [rows * topk, hidden].
    Choices with the id -1 are left out, whatever y has there."""
    y = y.view(*topk_ids.shape, -1)
    weighted = y.float() * topk_weights[:, :, None]
    return weighted.masked_fill((topk_ids < 0)[:, :, None], 0).sum(dim=1).to(y.dtype)


class PrepareAndFinalize:
    """Of one layer, or of all that share `comm`.

    topk1: one row for each choice, ids and weights [rows, 1] without -1, for kernels that cannot skip
    it. in_place: the kernel may write its sums over rows. global_ids: ids of the whole model, for
    kernels with an expert map, instead of local ones. micro_batch: which of several that are under
    way the calling thread is in; each has a dispatch of its own. activation_format: what that
    property gives, vLLM's enumerator.
    moe_config, quant_config: kept, as the base class does.
    """

    def __init__(self, comm: Communicator, *, topk1: bool = False, in_place: bool = False,
                 global_ids: bool = False, micro_batch: "Callable[[], Any]" = lambda: 0,
                 activation_format: Any = "standard", moe_config: Any = None, quant_config: Any = None) -> None:
        self.comm = comm
        self.moe_config, self.quant_config = moe_config, quant_config
        self._options = DispatchOptions(layout="rank_major", contiguous=True, topk1=topk1, in_place=in_place)
        # The last one is what -1 stays.
        self._global = torch.tensor([*comm.local_experts, -1], dtype=torch.int32) if global_ids else None
        self._micro_batch = micro_batch
        self._format = activation_format
        self._handles: "dict[Any, Handle]" = {}

    @property
    def activation_format(self) -> Any:
        return self._format

    def post_init_setup(self, fused_experts: Any) -> None:
        """Nothing depends on the experts."""

    def topk_indices_dtype(self) -> torch.dtype:
        return torch.int32

    def max_num_tokens_per_rank(self) -> int:
        return self.comm.max_tokens

    def num_dispatchers(self) -> int:
        return self.comm.size

    def output_is_reduced(self) -> bool:
        """True: finalize gives the sums over all ranks."""
        return True

    def supports_async(self) -> bool:
        return True

    def supports_deferred_moe_finalize(self) -> bool:
        return False

    def allocate_fused_expert_output(self, shape: "tuple[int, ...]", dtype: torch.dtype, device: Any,
                                     weight_and_reduce_impl: Any = None) -> "torch.Tensor | None":
        """Memory for the kernel's sums from which they are combined without a copy, after prepare();
        None where the library has none of this shape."""
        handle = self._handles.get(self._micro_batch())
        if handle is None or self._options.in_place:
            return None
        memory = handle.expert_output
        fits = memory.shape == tuple(shape) and memory.dtype == dtype and memory.is_contiguous()
        return memory if fits else None

    def prepare(self, a1: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor,
                num_experts: int, expert_map: "torch.Tensor | None" = None,
                apply_router_weight_on_input: bool = False, quant_config: Any = None,
                defer_input_quant: bool = False) -> tuple:
        """Sends a1 [tokens, hidden] to the ranks of its experts; waits for what comes here.

        topk_ids [tokens, topk] global ids, -1 = none, topk_weights float32. expert_map is not looked
        at. Returns (rows [M, hidden], None, ExpertTokens, ids int32 [M, topk], weights float32 [M,
        topk]); ids are -1 where an expert is elsewhere. rows are valid until finalize.
        Raises what Communicator.dispatch does; InvalidArgument where rows should come quantised.
        """
        return self.prepare_async(a1, topk_weights, topk_ids, num_experts, expert_map,
                                  apply_router_weight_on_input, quant_config, defer_input_quant)()

    def prepare_async(self, a1: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor,
                      num_experts: int, expert_map: "torch.Tensor | None" = None,
                      apply_router_weight_on_input: bool = False, quant_config: Any = None,
                      defer_input_quant: bool = False) -> "Callable[[], tuple]":
        """prepare() without waiting; what it returns waits, and gives what prepare() gives."""
        if num_experts != self.comm.num_experts:
            raise InvalidArgument(f"num_experts is {num_experts}, expected {self.comm.num_experts}")
        if not defer_input_quant and getattr(quant_config, "quant_dtype", None) is not None:
            raise InvalidArgument("quant_config has a quant_dtype, expected None or defer_input_quant")
        if apply_router_weight_on_input:
            if topk_ids.shape[1] != 1:
                raise InvalidArgument(f"topk_ids has {topk_ids.shape[1]} columns, expected 1 with "
                                      "apply_router_weight_on_input")
            a1 = a1 * topk_weights.to(a1.dtype)
        key = self._micro_batch()
        if key in self._handles:
            raise Misuse("prepare before finalize of the dispatch before")
        handle = self._started(a1, topk_ids, topk_weights.float())
        self._handles[key] = handle
        return lambda: self._received(handle)

    def _started(self, a1: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> Handle:
        until = time.monotonic() + self.comm.timeout
        while True:
            try:
                return self.comm.start_dispatch(a1, topk_ids, topk_weights, options=self._options)
            except NotReady:
                if time.monotonic() > until:
                    raise
                if self.comm.step() == 0:
                    os.sched_yield()

    def _received(self, handle: Handle) -> tuple:
        self.comm.wait(handle)
        received = handle.received
        ids, weights = received.topk_idx, received.topk_weights
        if ids.dim() == 1:
            ids, weights = ids[:, None], weights[:, None]
        if self._global is not None:
            ids = self._global[ids.long()]
        counts = received.expert_counts
        return received.rows.contiguous(), None, ExpertTokens(counts, counts), ids, weights

    def finalize(self, output: torch.Tensor, fused_expert_output: torch.Tensor, topk_weights: torch.Tensor,
                 topk_ids: torch.Tensor, apply_router_weight_on_input: bool = False,
                 weight_and_reduce_impl: Any = None) -> None:
        """Writes the sums over all ranks into output [tokens, hidden].

        fused_expert_output: [M, hidden] of sums over a row's experts, or one output for each choice,
        [M, topk, hidden], which is weighted and summed here, by weight_and_reduce_impl where that can.
        topk_ids, topk_weights: those of prepare(). Raises what Communicator.combine does, and Misuse
        without a prepare() before.
        """
        self.finalize_async(output, fused_expert_output, topk_weights, topk_ids,
                            apply_router_weight_on_input, weight_and_reduce_impl)()

    def finalize_async(self, output: torch.Tensor, fused_expert_output: torch.Tensor,
                       topk_weights: torch.Tensor, topk_ids: torch.Tensor,
                       apply_router_weight_on_input: bool = False,
                       weight_and_reduce_impl: Any = None) -> "Callable[[], None]":
        """finalize() without waiting; output is there after a call of what is returned."""
        handle = self._handles.get(self._micro_batch())
        if handle is None:
            raise Misuse("finalize before prepare")
        y = self._reduced(fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input,
                          weight_and_reduce_impl)
        if y.untyped_storage().data_ptr() == output.untyped_storage().data_ptr():
            y = y.clone()  # experts may have written to output, which combine does not take for both
        self.comm.start_combine(handle, y, out=output)
        del self._handles[self._micro_batch()]
        return lambda: self.comm.wait(handle)

    def _reduced(self, y: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, on_input: bool,
                 reduce: Any) -> torch.Tensor:
        if y.numel() == 0:
            return y.new_empty(0, y.shape[-1])
        # A class of this name leaves the work to finalize; its apply() is of no use.
        delegates = type(reduce).__name__.endswith("Delegate")
        if reduce is not None and not delegates:
            return reduce.apply(output=None, fused_expert_output=y, topk_weights=weights, topk_ids=ids,
                                apply_router_weight_on_input=on_input)
        if y.dim() == 2 and y.shape[0] == ids.shape[0] and not delegates:
            return y
        return weighted_sums(y, ids, torch.ones_like(weights) if on_input else weights)
