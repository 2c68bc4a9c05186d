"""DeepEP's legacy Buffer over ubep."""

from typing import Any

import torch

from .. import _core
from .._errors import InvalidArgument, Misuse
from . import _config
from ._channel import Channel
from ._config import Config
from ._event import EventHandle, EventOverlap, done
from ._low_latency import LowLatencyCalls
from ._peers import Peers
from ._route import LazyTuple, Route, route_of
from ._rows import pack, padded, row_bytes, take_rows, two_biases, unpack

_OPTIONS = _core.DispatchOptions(layout="rank_major")
_LEAST_TOKENS = 64
_SLOTS = 3


class Buffer(LowLatencyCalls):
    """Dispatch and combine of DeepEP's legacy interface, between processes of one host.

    group: a torch process group, or comm: an mpi4py communicator. enable_shrink: low-latency calls
    mask a rank that is lost, and go on. explicitly_destroy: destroy() may be called. The other
    arguments, sizes included, are accepted and not used: memory is made for the shapes that are sent,
    at their first use, by all ranks together. Making a Buffer is collective.
    """

    num_sms: int = 20

    def __init__(self, group: Any = None, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0,
                 low_latency_mode: bool = False, num_qps_per_rank: int = 24,
                 allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None,
                 use_fabric: bool = False) -> None:
        self._peers = Peers(group, comm)
        self.group = group if group is not None else comm
        self.rank, self.group_size = self._peers.rank, self._peers.size
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy, self.enable_shrink = explicitly_destroy, enable_shrink
        self._channels: "dict[Any, Channel]" = {}
        self._init_low_latency()

    def destroy(self) -> None:
        """Closes all communicators; local. Raises Misuse unless explicitly_destroy was given."""
        if not self.explicitly_destroy:
            raise Misuse("destroy() of a Buffer that was made without explicitly_destroy=True")
        self._peers.close()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether 8-bit floats can be sent: True."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """An even number, which Config objects made from now on hold."""
        if new_num_sms % 2 != 0:
            raise InvalidArgument(f"new_num_sms is {new_num_sms}, expected an even number")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event that has happened."""
        return done()

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """The recommended Config for a dispatch; any number of ranks."""
        return _config.dispatch_config(Buffer.num_sms, num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """The recommended Config for a combine; any number of ranks."""
        return _config.combine_config(Buffer.num_sms, num_ranks)

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
                                       num_experts: int) -> int:
        """Bytes that DeepEP needs for low-latency calls; here nothing is allocated by it."""
        return _config.low_latency_size(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    def get_comm_stream(self) -> Any:
        """A stream of PyTorch's CPU device, which does nothing."""
        return torch.cpu.current_stream()

    def get_local_buffer_tensor(self, dtype: torch.dtype, size: "torch.Size | None" = None, offset: int = 0,
                                use_rdma_buffer: bool = False) -> torch.Tensor:
        """Raises NotImplementedError: there is no such buffer."""
        raise NotImplementedError("get_local_buffer_tensor: rows lie in slots of communicators, not in one "
                                  "raw buffer; the tensors that dispatch returns are what there is to see")

    def get_dispatch_layout(self, topk_idx: torch.Tensor, num_experts: int,
                            previous_event: "EventOverlap | None" = None, async_finish: bool = False,
                            allocate_on_comm_stream: bool = False) -> Any:
        """How many tokens go where. Local.

        topk_idx: int64 [num_tokens, topk], -1 = none. Returns num_tokens_per_rank int32 [ranks] (a token
        counts once for a rank), None, num_tokens_per_expert int32 [num_experts], is_token_in_rank bool
        [num_tokens, ranks], and an event.
        """
        local = self._local_experts(num_experts)
        # Rank r is column r + 1, and -1 is column 0.
        ranks = torch.div(topk_idx.long() + local, local, rounding_mode="trunc")
        marks = torch.zeros(topk_idx.size(0), self.group_size + 1, dtype=torch.bool)
        is_token_in_rank = marks.scatter_(1, ranks, True)[:, 1:].contiguous()
        per_expert = torch.bincount((topk_idx + 1).flatten(), minlength=num_experts + 1)[1:].int()
        return is_token_in_rank.sum(0, dtype=torch.int32), None, per_expert, is_token_in_rank, done()

    def dispatch(self, x: Any, handle: Any = None, num_tokens_per_rank: "torch.Tensor | None" = None,
                 num_tokens_per_rdma_rank: "torch.Tensor | None" = None,
                 is_token_in_rank: "torch.Tensor | None" = None,
                 num_tokens_per_expert: "torch.Tensor | None" = None,
                 topk_idx: "torch.Tensor | None" = None, topk_weights: "torch.Tensor | None" = None,
                 expert_alignment: int = 1, num_worst_tokens: int = 0, config: "Config | None" = None,
                 previous_event: "EventOverlap | None" = None, async_finish: bool = False,
                 allocate_on_comm_stream: bool = False) -> Any:
        """Sends each token once to every rank that owns one of its experts.

        x: [num_tokens, hidden] of bfloat16, float16 or float32, or (8-bit floats [num_tokens, hidden],
        float32 or int32 scales [num_tokens, any]). handle: of an earlier dispatch, whose routing is used
        again; then no topk_idx. Otherwise num_tokens_per_expert [num_experts] gives the number of
        experts, and the routing is topk_idx int64 and topk_weights float32 [num_tokens, topk]; without
        both it is is_token_in_rank. num_worst_tokens: rows of what is returned, 0 = as many as come.

        Returns recv_x (as x, by source rank, then token), recv_topk_idx [rows, topk] (local ids, -1 = not
        here), recv_topk_weights [rows, topk] (0 there), the rows of each local expert rounded up to
        expert_alignment (empty with num_worst_tokens), the handle, an event; with `handle`, recv_x, four
        None and an event. Raises InvalidArgument, and what Communicator.dispatch raises.
        """
        x, scales = x if isinstance(x, tuple) else (x, None)
        sent = pack(x, scales)
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise InvalidArgument("topk_idx and topk_weights are given, expected None with a handle")
            route = route_of(handle)
            route.channel.dispatch_cached(sent, route.handle)
            rows = take_rows(route.handle, route.shown)
            return unpack(rows, x, scales), None, None, None, None, done()
        if num_tokens_per_expert is None or is_token_in_rank is None or num_tokens_per_rank is None:
            raise InvalidArgument("num_tokens_per_rank, is_token_in_rank and num_tokens_per_expert are needed "
                                  "without a handle: take them from get_dispatch_layout()")
        counts = None
        idx, weights = topk_idx, topk_weights
        if idx is None or weights is None:
            if idx is not None or weights is not None or num_worst_tokens != 0:
                raise InvalidArgument("topk_idx and topk_weights: expected both, or none and no num_worst_tokens")
            idx, weights, counts = self._route_ranks(is_token_in_rank, num_tokens_per_expert)
        channel, native = self._dispatch(sent, idx, weights, num_tokens_per_expert.size(0), row_bytes(x, sent, idx))
        received = native.received
        num_rows = received.num_rows
        shown = num_worst_tokens or num_rows
        if shown < num_rows:
            raise InvalidArgument(f"num_worst_tokens is {shown}, expected at least the {num_rows} received rows")
        if counts is None:
            counts = received.expert_counts.tolist()
        counts = [-(-n // expert_alignment) * expert_alignment for n in counts]
        recv_x = unpack(take_rows(native, shown), x, scales)
        recv_idx = recv_weights = None
        if topk_idx is not None:
            recv_idx = padded(received.topk_idx.to(topk_idx.dtype), shown, -1)
            recv_weights = padded(received.topk_weights, shown, 0)
        made = self._handle(Route(channel, native, num_rows, shown), received.src_counts, num_tokens_per_rank,
                            is_token_in_rank)
        return recv_x, recv_idx, recv_weights, [] if num_worst_tokens else counts, made, done()

    def combine(self, x: torch.Tensor, handle: Any, topk_weights: "torch.Tensor | None" = None,
                bias: Any = None, config: "Config | None" = None,
                previous_event: "EventOverlap | None" = None, async_finish: bool = False,
                allocate_on_comm_stream: bool = False) -> Any:
        """Sums each token's rows of all ranks, without weights, in float32 and in the order of ranks.

        x: [rows, hidden] as received, bfloat16, float16 or float32. topk_weights: float32 [rows, topk],
        summed likewise. bias: none, one or two [num_tokens, hidden] of x's dtype, added before the one
        rounding. Returns [num_tokens, hidden], float32 [num_tokens, topk] or None, and an event.
        """
        channel, native, num_rows, _ = route_of(handle)
        channel.lease(native)
        out = channel.comm.combine(native, x[:num_rows], added=two_biases(bias))
        weights = None
        if topk_weights is not None:
            channel.lease(native)
            weights = channel.comm.combine(native, topk_weights[:num_rows])
        return out, weights, done()

    def _local_experts(self, num_experts: int) -> int:
        if num_experts < 1 or num_experts % self.group_size != 0:
            raise InvalidArgument(f"num_experts is {num_experts}, expected a multiple of {self.group_size} ranks")
        return num_experts // self.group_size

    def _dispatch(self, sent: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, num_experts: int,
                  bytes_of_a_row: int) -> "tuple[Channel, _core.Handle]":
        """Into a channel with room for all ranks' tokens.

        A rank with more than its channel has room for says so in its word, and sends none: all ranks see
        it when the dispatch is complete, make a larger channel, and send again.
        """
        self._local_experts(num_experts)
        num_tokens = sent.size(0)
        key = (num_experts, bytes_of_a_row, idx.size(1))
        channel = self._channels.get(key) or self._grow(key, num_tokens)
        while True:
            tag, fits = channel.next_tag(), num_tokens <= channel.max_tokens
            if fits:
                native = channel.dispatch(sent, idx, weights, _OPTIONS)
            else:
                self._peers.words[self.rank] = tag
                native = channel.dispatch(sent[:0], idx[:0], weights[:0], _OPTIONS)
            if tag not in self._peers.words:
                return channel, native
            channel.release(native)
            channel = self._grow(key, num_tokens)

    def _grow(self, key: "tuple[int, int, int]", num_tokens: int) -> Channel:
        """A channel with room for the most tokens of a rank. Collective."""
        found = self._peers.gather((key, num_tokens))
        for rank, (theirs, _) in enumerate(found):
            if theirs != key:
                raise InvalidArgument(f"(num_experts, bytes of a row, topk) is {key} on rank {self.rank} and "
                                      f"{theirs} on rank {rank}, expected the same")
        most = max(max(n for _, n in found), _LEAST_TOKENS)
        room = 1 << (most - 1).bit_length()
        num_experts, bytes_of_a_row, topk = key
        self._channels[key] = self._peers.open(
            num_experts=num_experts, max_tokens=room, max_hidden=-(-bytes_of_a_row // 2), max_topk=topk,
            slots=_SLOTS)
        return self._channels[key]

    def _route_ranks(self, is_token_in_rank: torch.Tensor, num_tokens_per_expert: torch.Tensor) -> Any:
        """Without topk_idx: a choice for each rank, its first expert; weights; and the rows of each local
        expert, for which all ranks tell one another num_tokens_per_expert."""
        local = self._local_experts(num_tokens_per_expert.size(0))
        first = torch.arange(self.group_size, dtype=torch.int32) * local
        idx = torch.where(is_token_in_rank, first, -1)
        mine = slice(self.rank * local, (self.rank + 1) * local)
        counts = torch.tensor(self._peers.gather(num_tokens_per_expert.tolist())).sum(0)[mine].tolist()
        return idx, torch.ones(idx.shape), counts

    def _handle(self, route: Route, src_counts: torch.Tensor, num_tokens_per_rank: torch.Tensor,
                is_token_in_rank: torch.Tensor) -> LazyTuple:
        """DeepEP's six tensors. Of what only its kernels use there is what is known here, and -1."""

        def make() -> "tuple[torch.Tensor, ...]":
            size = self.group_size
            prefix = torch.full((size, size), -1, dtype=torch.int32)
            prefix[:, self.rank] = src_counts.cumsum(0)
            unknown = prefix.new_full((1,), -1)
            return (prefix, num_tokens_per_rank.view(size, 1), prefix.new_zeros(size, 1),
                    unknown.expand(route.shown), is_token_in_rank, unknown.expand(is_token_in_rank.shape))

        return LazyTuple(6, route, make)


__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap"]
