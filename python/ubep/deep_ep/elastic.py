"""DeepEP's ElasticBuffer over ubep."""

import functools
import itertools
from typing import Any

import torch

from .. import _core
from .._errors import InvalidArgument, Misuse
from ._channel import Channel
from ._event import EventHandle, EventOverlap, done
from ._peers import Peers
from ._rows import pack, padded, row_bytes, take_rows, two_biases, unpack

_SLOTS = 3
_TWO_MIB = 2 << 20
_MOST_TOPK = 32
_PLAIN = _core.DispatchOptions(layout="rank_major")


@functools.lru_cache(maxsize=None)
def _expanded(alignment: int) -> _core.DispatchOptions:
    return _core.DispatchOptions(layout="expert_major", expert_alignment=alignment)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class EPHandle:
    """What ElasticBuffer.dispatch returns, and combine and cached dispatches need.

    do_expand, num_experts, expert_alignment, num_max_tokens_per_rank, num_sms, topk_idx: of the dispatch.
    num_recv_tokens: of this rank, each once; num_expanded_tokens: rows by expert, padding counted.
    num_recv_tokens_per_expert_list: aligned counts, empty without do_cpu_sync.
    num_unaligned_recv_tokens_per_expert int32 [local experts]. psum_num_recv_tokens_per_expert int32
    [local experts]: inclusive sums of aligned counts; expanded: where an expert's last row ends.
    psum_num_recv_tokens_per_scaleup_rank int32 [ranks]: inclusive sums. recv_src_metadata int32
    [num_recv_tokens, topk + 2]: rank * max_tokens + token, -1, and the expanded row of each choice or -1.
    """

    def __init__(self, channel: Channel, native: _core.Handle, *, do_expand: bool, expert_alignment: int,
                 num_max_tokens_per_rank: int, num_experts: int, topk_idx: torch.Tensor, do_cpu_sync: bool,
                 num_sms: int) -> None:
        self.do_expand, self.expert_alignment = do_expand, expert_alignment
        self.num_max_tokens_per_rank, self.num_experts = num_max_tokens_per_rank, num_experts
        self.num_sms, self.topk_idx = num_sms, topk_idx
        self.token_metadata_at_forward = self.channel_linked_list = None
        self._channel, self._native, self._first = channel, native, native
        self._size = channel.comm.size
        received = native.received
        self.num_rows = received.num_rows
        if do_expand:
            self._choices = native.row_choices()
            self._sources = received.payload("source").clone().view(torch.int32)[:, 0]
            counts = received.expert_counts.tolist()
        else:
            # Each choice travelled twice, the second time with its token's number as the weight.
            topk = topk_idx.size(1)
            self._src_counts, self._both_weights = received.src_counts, received.topk_weights
            self.recv_topk_idx = received.topk_idx[:, :topk].to(topk_idx.dtype)
            counts = [n // 2 for n in received.expert_counts.tolist()]
        self._counts = counts
        self._aligned = [_round_up(n, expert_alignment) for n in counts]
        self.num_expanded_tokens = sum(self._aligned)
        self.num_recv_tokens_per_expert_list = self._aligned if do_cpu_sync else []
        self.shown = self.num_rows if do_cpu_sync else self._most_rows(len(counts))

    def _most_rows(self, local_experts: int) -> int:
        tokens = self._size * self.num_max_tokens_per_rank
        if not self.do_expand:
            return tokens
        rows = tokens * min(self.topk_idx.size(1), local_experts) + (self.expert_alignment - 1) * local_experts
        return _round_up(rows, self.expert_alignment)

    def weights_of(self, native: _core.Handle) -> torch.Tensor:
        """Plain: float32 [rows, topk] of the latest dispatch of these tokens."""
        both = self._both_weights if native is self._first else native.received.topk_weights
        return both[:, : both.size(1) // 2].contiguous()

    @functools.cached_property
    def num_unaligned_recv_tokens_per_expert(self) -> torch.Tensor:
        """int32 [local experts]."""
        return torch.tensor(self._counts, dtype=torch.int32)

    @functools.cached_property
    def psum_num_recv_tokens_per_expert(self) -> torch.Tensor:
        """int32 [local experts]."""
        ends = list(itertools.accumulate(self._aligned))
        if self.do_expand:
            ends = [end - room + n for end, room, n in zip(ends, self._aligned, self._counts)]
        return torch.tensor(ends, dtype=torch.int32)

    @functools.cached_property
    def recv_src_metadata(self) -> torch.Tensor:
        """int32 [num_recv_tokens, topk + 2]."""
        topk = self.topk_idx.size(1)
        if not self.do_expand:
            made = torch.full((self.num_rows, topk + 2), -1, dtype=torch.int32)
            source = torch.repeat_interleave(self._src_counts)
            made[:, 0] = source * self.num_max_tokens_per_rank + self._both_weights[:, topk:].amax(1).int() - 1
            return made
        rows = (self._choices >= 0).nonzero()[:, 0]
        tokens, place = torch.unique(self._sources[rows], return_inverse=True)
        made = torch.full((tokens.numel(), topk + 2), -1, dtype=torch.int32)
        made[:, 0] = tokens
        made[place, self._choices[rows].long() + 2] = rows.int()
        return made

    @functools.cached_property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> torch.Tensor:
        """int32 [ranks]."""
        if not self.do_expand:
            return self._src_counts.cumsum(0, dtype=torch.int32)
        source = torch.div(self.recv_src_metadata[:, 0], self.num_max_tokens_per_rank, rounding_mode="floor")
        return torch.bincount(source, minlength=self._size).cumsum(0, dtype=torch.int32)

    @property
    def num_recv_tokens(self) -> int:
        """Tokens that this rank received, each once."""
        return self.recv_src_metadata.size(0) if self.do_expand else self.num_rows

    @functools.cached_property
    def one_hot_choices(self) -> torch.Tensor:
        """Expanded: bool [rows, topk], which choice a row is; nothing for padding."""
        return self._choices.unsqueeze(1) == torch.arange(self.topk_idx.size(1), dtype=torch.int32)

    @functools.cached_property
    def dst_buffer_slot_idx(self) -> torch.Tensor:
        """int32 [num_tokens, topk]: -1, for there are no such slots."""
        return torch.full(self.topk_idx.shape, -1, dtype=torch.int32)


class ElasticBuffer:
    """Dispatch and combine of DeepEP's ElasticBuffer, between processes of one host.

    group: a torch process group. num_max_tokens_per_rank: of each dispatch that names none.
    num_cpu_timeout_secs: of every wait. Rows always come in the order (source, token), or (expert, source,
    token, k) expanded, so `deterministic` changes nothing. Sizes, service levels, queue pairs and what
    tunes a GPU are accepted and not used. Making one is collective.
    """

    def __init__(self, group: Any, num_bytes: "int | None" = None, num_cpu_bytes: int = 0,
                 num_max_tokens_per_rank: int = 0, hidden: int = 0, num_topk: int = 0,
                 use_fp8_dispatch: bool = False, deterministic: bool = False, allow_hybrid_mode: bool = True,
                 allow_multiple_reduction: bool = True, prefer_overlap_with_compute: bool = True,
                 sl_idx: int = 3, num_allocated_qps: int = 0, num_cpu_timeout_secs: int = 300,
                 num_gpu_timeout_secs: int = 100, explicitly_destroy: bool = False) -> None:
        self._peers = Peers(group)
        self.group, self.rank_idx, self.num_ranks = group, self._peers.rank, self._peers.size
        self.num_bytes, self.num_max_tokens_per_rank = num_bytes, num_max_tokens_per_rank
        self.deterministic, self.allow_hybrid_mode = deterministic, allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.num_allocated_qps = num_allocated_qps or 17
        self.explicitly_destroy = explicitly_destroy
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self._timeout = float(num_cpu_timeout_secs)
        self._channels: "dict[Any, Channel]" = {}
        self._tokens = torch.empty(0, 1, dtype=torch.int32)
        self._codes = torch.empty(0, 1)

    def destroy(self) -> None:
        """Closes all communicators; local. Raises Misuse unless explicitly_destroy was given."""
        if not self.explicitly_destroy:
            raise Misuse("destroy() of an ElasticBuffer that was made without explicitly_destroy=True")
        self._peers.close()

    @staticmethod
    def get_buffer_size_hint(group: Any, num_max_tokens_per_rank: int, hidden: int, num_topk: int = 0,
                             use_fp8_dispatch: bool = False, allow_hybrid_mode: bool = True,
                             allow_multiple_reduction: bool = True) -> int:
        """Bytes, a multiple of 2 MiB, that a rank shares for such dispatches of bfloat16 with one expert on
        each rank. Nothing is allocated by it."""
        plan = _core.Communicator.plan_memory(
            0, group.size(), num_experts=group.size(), max_tokens=num_max_tokens_per_rank, max_hidden=hidden,
            max_topk=num_topk or _MOST_TOPK, slots=_SLOTS)
        return _round_up(plan.shared_bytes, _TWO_MIB)

    @staticmethod
    def capture() -> EventHandle:
        """An event that has happened."""
        return EventHandle()

    def get_comm_stream(self) -> Any:
        """A stream of PyTorch's CPU device, which does nothing."""
        return torch.cpu.current_stream()

    def get_physical_domain_size(self) -> "tuple[int, int]":
        """(1, ranks)."""
        return 1, self.num_ranks

    def get_logical_domain_size(self) -> "tuple[int, int]":
        """(1, ranks)."""
        return 1, self.num_ranks

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, num_scaleout_topk: int = 0,
                                rdma_gbs: float = 0, nvlink_gbs: float = 0, sm_read_gbs: float = 200,
                                sm_write_gbs: float = 50) -> int:
        """4, the least that DeepEP gives: it has no effect here."""
        return 4

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """At most num_allocated_qps; it has no effect here."""
        return min(num_sms * 16 + 1 if self.allow_hybrid_mode else min(num_sms, 9), self.num_allocated_qps)

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Returns once all ranks have called it."""
        self._peers.gather(None)

    def dispatch(self, x: Any, topk_idx: "torch.Tensor | None" = None, topk_weights: "torch.Tensor | None" = None,
                 cumulative_local_expert_recv_stats: "torch.Tensor | None" = None,
                 num_experts: "int | None" = None, num_max_tokens_per_rank: "int | None" = None,
                 expert_alignment: "int | None" = None, num_sms: int = 0, num_qps: int = 0,
                 previous_event: "EventHandle | None" = None,
                 previous_event_before_epilogue: "EventHandle | None" = None,
                 async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False,
                 handle: "EPHandle | None" = None, do_handle_copy: bool = True, do_cpu_sync: "bool | None" = None,
                 do_expand: bool = False, do_zero_padding: bool = False,
                 use_tma_aligned_col_major_sf: bool = False) -> Any:
        """Sends tokens once to each rank that owns one of their experts, or, with do_expand, to each expert.

        x: [num_tokens, hidden] of bfloat16, float16 or float32, or (8-bit floats, float32 or int32 scales
        [num_tokens, any]). topk_idx int64 and topk_weights float32 [num_tokens, topk], or the handle of an
        earlier dispatch, whose routing is used again, with other topk_weights if given.
        cumulative_local_expert_recv_stats: int32 [local experts], to which the counts are added.
        do_cpu_sync=False: as many rows as could come; what lies behind is undefined (ids -1, weights 0).
        Expanded rows of an expert begin at multiples of expert_alignment; those between are zero, asked for
        or not.

        Returns recv_x (as x), recv_topk_idx [rows, topk] (local ids, -1 = not here; None when expanded),
        recv_topk_weights [rows, topk], expanded [rows], or None, the EPHandle, an event. Raises
        InvalidArgument, and what Communicator.dispatch raises.
        """
        x, scales = x if isinstance(x, tuple) else (x, None)
        sent = pack(x, scales)
        if handle is not None:
            if topk_idx is not None or do_cpu_sync:
                raise InvalidArgument("topk_idx and do_cpu_sync: expected neither with a handle")
            _check_cached(handle, num_experts=num_experts, num_max_tokens_per_rank=num_max_tokens_per_rank,
                          expert_alignment=expert_alignment, do_expand=do_expand)
            if topk_weights is None:
                handle._channel.dispatch_cached(sent, handle._native)
            else:
                handle._native = self._start(handle._channel, sent, handle.topk_idx, topk_weights, vars(handle))
        else:
            if topk_idx is None or num_experts is None:
                raise InvalidArgument("topk_idx and num_experts are needed without a handle")
            room = self.num_max_tokens_per_rank if num_max_tokens_per_rank is None else num_max_tokens_per_rank
            facts = dict(do_expand=do_expand, num_experts=num_experts, expert_alignment=expert_alignment or 1,
                         num_max_tokens_per_rank=room, num_sms=num_sms or 4,
                         do_cpu_sync=do_cpu_sync is not False)
            handle = self._make(x, sent, topk_idx, topk_weights, facts, do_handle_copy)
        native, shown = handle._native, handle.shown
        if cumulative_local_expert_recv_stats is not None:
            cumulative_local_expert_recv_stats.add_(handle.num_unaligned_recv_tokens_per_expert)
        recv_x = unpack(take_rows(native, shown), x, scales)
        if scales is not None and use_tma_aligned_col_major_sf:
            recv_x = recv_x[0], _by_column(recv_x[1])
        recv_idx = None if handle.do_expand else padded(handle.recv_topk_idx, shown, -1)
        recv_weights = None
        if topk_weights is not None:
            weights = native.row_weights() if handle.do_expand else handle.weights_of(native)
            recv_weights = padded(weights, shown, 0)
        return recv_x, recv_idx, recv_weights, handle, done()

    def combine(self, x: torch.Tensor, handle: EPHandle, topk_weights: "torch.Tensor | None" = None,
                bias: Any = None, num_sms: int = 0, num_qps: int = 0,
                previous_event: "EventHandle | None" = None,
                previous_event_before_epilogue: "EventHandle | None" = None,
                async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False) -> Any:
        """Sums each token's rows without weights, in float32 with one rounding: by rank, or expanded by k.

        x: [rows, hidden] as received, bfloat16, float16 or float32. topk_weights: float32 [rows, topk],
        summed likewise, or [rows] when expanded, each for its choice. bias: none, one or two [num_tokens,
        hidden]. Returns [num_tokens, hidden], float32 [num_tokens, topk] or None, and an event.
        """
        channel, native, rows = handle._channel, handle._native, handle.num_rows
        channel.lease(native)
        out = channel.comm.combine(native, x[:rows], added=two_biases(bias), unweighted=True)
        weights = None
        if topk_weights is not None:
            y = topk_weights[:rows]
            if handle.do_expand:
                y = torch.where(handle.one_hot_choices, y.unsqueeze(1), 0)
            channel.lease(native)
            weights = channel.comm.combine(native, y, unweighted=True)
        return out, weights, done()

    def _make(self, x: torch.Tensor, sent: torch.Tensor, topk_idx: torch.Tensor,
              topk_weights: "torch.Tensor | None", facts: "dict[str, Any]", do_handle_copy: bool) -> EPHandle:
        """A new dispatch."""
        num_experts, room = facts["num_experts"], facts["num_max_tokens_per_rank"]
        topk = topk_idx.size(1)
        if num_experts % self.num_ranks != 0 or topk > _MOST_TOPK:
            raise InvalidArgument(f"num_experts is {num_experts} and topk {topk}, expected a multiple of "
                                  f"{self.num_ranks} ranks and at most {_MOST_TOPK}")
        if sent.size(0) > room:
            raise InvalidArgument(f"x has {sent.size(0)} tokens, expected at most num_max_tokens_per_rank {room}")
        channel = self._channel(facts["do_expand"], num_experts, row_bytes(x, sent, topk_idx), topk, room)
        weights = topk_weights if topk_weights is not None else torch.zeros(topk_idx.shape)
        native = self._start(channel, sent, topk_idx, weights, facts)
        return EPHandle(channel, native, topk_idx=topk_idx.clone() if do_handle_copy else topk_idx, **facts)

    def _start(self, channel: Channel, sent: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor,
               facts: "dict[str, Any]") -> _core.Handle:
        """Rows, and with each where it comes from."""
        tokens = self._tokens[: sent.size(0)]
        if facts["do_expand"]:
            source = tokens + self.rank_idx * facts["num_max_tokens_per_rank"]
            return channel.dispatch(sent, topk_idx, topk_weights, _expanded(facts["expert_alignment"]),
                                    {"source": source})
        twice = torch.cat((topk_idx, topk_idx), 1)
        codes = self._codes[: sent.size(0)].expand(topk_idx.shape)
        return channel.dispatch(sent, twice, torch.cat((topk_weights, codes), 1), _PLAIN)

    def _channel(self, do_expand: bool, num_experts: int, bytes_of_a_row: int, topk: int,
                 room: int) -> Channel:
        """One that has room for `room` tokens. Collective where it is a new one."""
        key = (do_expand, num_experts, bytes_of_a_row, topk)
        found = self._channels.get(key)
        if found is not None and found.max_tokens >= room:
            return found
        self._peers.agree(do_expand=do_expand, num_experts=num_experts, bytes_of_a_row=bytes_of_a_row, topk=topk,
                          num_max_tokens_per_rank=room)
        self._channels[key] = self._peers.open(
            "source" if do_expand else None, num_experts=num_experts, max_tokens=room,
            max_hidden=-(-bytes_of_a_row // 2), slots=_SLOTS,
            max_topk=topk if do_expand else 2 * topk, max_payload=8 if do_expand else 0, timeout=self._timeout)
        if room > self._tokens.size(0):
            self._tokens = torch.arange(room, dtype=torch.int32).unsqueeze(1)
            self._codes = (self._tokens + 1).float()
        return self._channels[key]


def _check_cached(handle: EPHandle, **given: Any) -> None:
    """Raises InvalidArgument where an argument says something else than the handle."""
    for name, value in given.items():
        if value is not None and value != getattr(handle, name):
            raise InvalidArgument(f"{name} is {value}, expected {getattr(handle, name)} as in the handle")


def _by_column(scales: torch.Tensor) -> torch.Tensor:
    """The same, stored by column, each column a multiple of 4 long."""
    rows, columns = scales.shape
    return torch.empty(columns, _round_up(rows, 4), dtype=scales.dtype)[:, :rows].t().copy_(scales)
