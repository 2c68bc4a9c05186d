"""A token dispatcher in the shape that Megatron-LM's MoE layer calls.

    hidden, probs = d.dispatch_preprocess(hidden_states, routing_map, probs)
    hidden, probs = d.token_dispatch(hidden, probs)
    rows, tokens_per_expert, row_probs = d.dispatch_postprocess(hidden, probs)
    y = d.combine_preprocess(experts(rows, tokens_per_expert, row_probs))
    out = d.combine_postprocess(d.token_combine(y))

The experts apply row_probs themselves. Gradients go to hidden_states, probs and the experts. Nothing
of Megatron-LM is imported.
"""

from typing import Any, Sequence

import torch

from .._core import Layout
from .._errors import InvalidArgument, Misuse
from ..expert_parallel import Dispatched, ExpertParallel

# What a configuration may ask for that this dispatcher does not do.
_REFUSED = ("moe_shared_expert_overlap", "moe_pad_expert_input_to_capacity",
            "moe_router_padding_for_quantization")


def _size_of(group: Any) -> int:
    return 1 if group is None else group.size()


def choices_of(routing_map: torch.Tensor, probs: torch.Tensor, topk: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """topk_idx int64 and topk_weights float32 [tokens, topk] of a map [tokens, experts] of bool (or
    0 and 1) and probabilities of the same shape: each token's experts in their order, -1 and 0 where
    it has fewer. Raises InvalidArgument where one has more."""
    chosen = routing_map.bool()
    most = int(chosen.sum(dim=1).max()) if len(chosen) > 0 else 0
    if most > topk:
        raise InvalidArgument(f"routing_map has {most} experts of a token, expected at most {topk}")
    number = torch.arange(chosen.shape[1]).expand_as(chosen)
    first = torch.where(chosen, number, chosen.shape[1]).topk(topk, dim=1, largest=False, sorted=True)[0]
    there = first < chosen.shape[1]
    at = first.masked_fill(~there, 0)
    return at.masked_fill(~there, -1), probs.gather(1, at).float().masked_fill(~there, 0)


class TokenDispatcher:
    """One MoE layer's dispatcher; layers may share `exchange`.

    num_local_experts, local_expert_indices, config (num_moe_experts, moe_router_topk), pg_collection
    (ep, expt_tp): as Megatron-LM gives them; groups are only asked for their size. exchange: an
    ubep.ExpertParallel of the layout "expert_major", with training=True where gradients are wanted.

    Raises InvalidArgument where the two do not fit: other experts, another number of ranks, tensor
    parallelism of experts, shared experts that overlap, capacity or padding of experts.
    """

    def __init__(self, num_local_experts: int, local_expert_indices: "Sequence[int]", config: Any,
                 pg_collection: Any = None, *, exchange: ExpertParallel) -> None:
        comm = exchange.comm
        if list(local_expert_indices) != comm.local_experts or num_local_experts != comm.num_local_experts:
            raise InvalidArgument(f"local_expert_indices are {list(local_expert_indices)}, expected "
                                  f"{comm.local_experts} as the exchange has on rank {comm.rank}")
        if config.num_moe_experts != comm.num_experts:
            raise InvalidArgument(f"config.num_moe_experts is {config.num_moe_experts}, expected {comm.num_experts}")
        if exchange.options.layout != Layout.expert_major or exchange.options.expert_alignment != 1:
            raise InvalidArgument("exchange has another layout or alignment, expected expert_major and 1")
        for name in _REFUSED:
            if getattr(config, name, False):
                raise InvalidArgument(f"config.{name} is set, expected it off")
        if pg_collection is not None:
            sizes = _size_of(pg_collection.ep), _size_of(getattr(pg_collection, "expt_tp", None))
            if sizes != (comm.size, 1):
                raise InvalidArgument(f"pg_collection has ep and expt_tp of {sizes[0]} and {sizes[1]} ranks, "
                                      f"expected {comm.size} and 1")
        self.config = config
        self.num_local_experts = num_local_experts
        self.local_expert_indices = list(local_expert_indices)
        self.ep_size, self.ep_rank, self.tp_size, self.tp_rank = comm.size, comm.rank, 1, 0
        self.shared_experts = None
        self.exchange = exchange
        self.routing_map: "torch.Tensor | None" = None
        self.hidden_shape: "torch.Size | None" = None
        self._topk_idx: "torch.Tensor | None" = None
        self._probs_dtype = torch.float32
        self._dispatched: "Dispatched | None" = None

    def dispatch_preprocess(self, hidden_states: torch.Tensor, routing_map: torch.Tensor,
                            probs: torch.Tensor) -> "tuple[torch.Tensor, torch.Tensor]":
        """hidden_states [.., hidden] as [tokens, hidden], and the probabilities of each token's choices,
        float32 [tokens, topk]. routing_map, probs: [tokens, experts]."""
        self.hidden_shape = hidden_states.shape
        self.routing_map, self._probs_dtype = routing_map, probs.dtype
        hidden_states = hidden_states.reshape(-1, hidden_states.shape[-1])
        self._topk_idx, weights = choices_of(routing_map, probs, self.config.moe_router_topk)
        return hidden_states, weights

    def token_dispatch(self, hidden_states: torch.Tensor,
                       probs: torch.Tensor) -> "tuple[torch.Tensor, torch.Tensor]":
        """Rows [N, hidden] of this rank's experts, packed by expert, and their probabilities [N].
        Without gradients rows are a view, valid until token_combine."""
        if self._topk_idx is None:
            raise Misuse("token_dispatch before dispatch_preprocess")
        self._dispatched = self.exchange.dispatch(hidden_states, self._topk_idx, probs)
        self._topk_idx = None
        return self._dispatched.rows, self._dispatched.weights

    def dispatch_postprocess(
            self, hidden_states: torch.Tensor,
            probs: torch.Tensor) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
        """The rows, int64 [local experts] how many each expert has, and the probabilities [N] in the
        dtype of the router's."""
        counts = self._sent("dispatch_postprocess").expert_counts.long()
        return hidden_states, counts, probs.to(self._probs_dtype)

    def combine_preprocess(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Expert outputs [N, hidden] in the order of the rows, as they are."""
        return hidden_states

    def token_combine(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden]: the sums of the outputs of each token's experts."""
        dispatched = self._sent("token_combine")
        self._dispatched = None
        return self.exchange.combine(hidden_states, dispatched, unweighted=True)

    def combine_postprocess(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """In the shape of what dispatch_preprocess was given."""
        return hidden_states.view(self.hidden_shape)

    def token_permutation(
            self, hidden_states: torch.Tensor, probs: torch.Tensor,
            routing_map: torch.Tensor) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
        """The three steps of dispatch in one, as older releases call it."""
        return self.dispatch_postprocess(
            *self.token_dispatch(*self.dispatch_preprocess(hidden_states, routing_map, probs)))

    def token_unpermutation(self, hidden_states: torch.Tensor,
                            bias: "torch.Tensor | None" = None) -> "tuple[torch.Tensor, None]":
        """The three steps of combine in one, as older releases call it. bias must be None."""
        if bias is not None:
            raise InvalidArgument("bias is a tensor, expected None")
        return self.combine_postprocess(self.token_combine(self.combine_preprocess(hidden_states))), None

    def set_shared_experts(self, shared_experts: Any) -> None:
        """Called where shared experts overlap with communication: raises InvalidArgument. Others are
        the layer's own affair."""
        raise InvalidArgument("config.moe_shared_expert_overlap is set, expected it off")

    def get_expert_zero_copy_buffers(self) -> "tuple[None, None]":
        """None: experts write into tensors of their own."""
        return None, None

    def _sent(self, call: str) -> Dispatched:
        if self._dispatched is None:
            raise Misuse(f"{call} before token_dispatch")
        return self._dispatched
