"""The low-latency pair of calls: rows by expert, in tensors of fixed shape."""

from typing import Any, Callable

import torch

from .. import _core
from .._errors import InvalidArgument, Misuse, PeerLost
from ._event import done
from ._peers import Peers
from ._route import LazyTuple, refuse, route_of

_SLOTS = 4
_OPTIONS = {quant: _core.DispatchOptions(layout="expert_padded", quant=quant)
            for quant in ("none", "fp8", "fp8_pow2", "fp8_ue8m0")}
_FP8_BLOCK = 128


class _Room:
    """A channel for (max_tokens, hidden, num_experts, topk), and tensors that are used again."""

    def __init__(self, peers: Peers, max_tokens: int, hidden: int, num_experts: int, topk: int) -> None:
        self.max_tokens, self.hidden = max_tokens, hidden
        self.experts, self.capacity = num_experts // peers.size, peers.size * max_tokens
        self.size = peers.size
        self.channel = peers.open(num_experts=num_experts, max_tokens=max_tokens, max_hidden=hidden, max_topk=topk,
                                  slots=_SLOTS, expert_capacity=self.capacity)
        # The weight of a row says which token it is; combine brings the real ones.
        first = peers.rank * max_tokens
        self._codes = torch.arange(first, first + max_tokens, dtype=torch.float32).unsqueeze(1).expand(-1, topk)
        self.places = torch.arange(self.capacity, dtype=torch.int32)
        self._spare: "dict[Any, torch.Tensor]" = {}

    def codes(self, num_tokens: int) -> torch.Tensor:
        """float32 [num_tokens, topk]: rank * max_tokens + token."""
        return self._codes[:num_tokens]

    def spare(self, slot: int, columns: int, dtype: torch.dtype, by_column: bool) -> torch.Tensor:
        """[local experts, capacity, columns], the same memory for each slot."""
        key = slot, columns, dtype
        if key not in self._spare:
            shape = (columns, self.capacity) if by_column else (self.capacity, columns)
            self._spare[key] = torch.empty(self.experts, *shape, dtype=dtype)
        return self._spare[key].transpose(1, 2) if by_column else self._spare[key]


class _Arrival:
    """A dispatch under way: the tensors that were handed out, and what fills them."""

    def __init__(self, room: _Room, native: _core.Handle, dtype: torch.dtype, quant: str) -> None:
        self.room, self.native = room, native
        self.slot = native.epoch % _SLOTS
        self.shape = (room.experts, room.capacity)
        self.x = torch.empty(1, dtype=dtype if quant == "none" else torch.float8_e4m3fn)
        self.x = self.x.expand(*self.shape, room.hidden)
        self.scales: "torch.Tensor | None" = None
        if quant == "fp8_ue8m0":
            self.scales = room.spare(self.slot, room.hidden // (4 * _FP8_BLOCK), torch.int32, True)
        elif quant != "none":
            self.scales = room.spare(self.slot, -(-room.hidden // _FP8_BLOCK), torch.float32, True)
        self.counts = torch.empty(room.experts, dtype=torch.int32)
        self._filled: "tuple[torch.Tensor, torch.Tensor] | None" = None

    def fill(self) -> None:
        """Once the rows are here."""
        room, received = self.room, self.native.received
        rows, counts = received.rows, received.expert_counts
        self.counts.copy_(counts)
        self._filled = counts, self.native.row_weights()
        if self.scales is None:
            self.x.set_(rows.unflatten(0, self.shape))
            return
        offset, count, each, _ = received.scale_place
        self.x.set_(rows[:, : room.hidden].view(torch.float8_e4m3fn).unflatten(0, self.shape))
        scales = rows[:, offset : offset + count * each].view(self.scales.dtype).unflatten(0, self.shape)
        expert, place = self._rows(counts)
        self.scales[expert, place] = scales[expert, place]

    def closed_up(self, y: torch.Tensor, ranks: "list[int]") -> torch.Tensor:
        """Outputs y of all rows, where rows lie when only `ranks` send any."""
        expert, place, source, _ = self._origins()
        is_kept = torch.isin(source, torch.tensor(ranks))
        expert, place = expert[is_kept], place[is_kept]
        first = torch.bincount(expert, minlength=self.shape[0]).cumsum(0).roll(1)
        first[0] = 0
        moved = torch.zeros_like(y).unflatten(0, self.shape)
        moved[expert, torch.arange(expert.numel()) - first[expert]] = y.unflatten(0, self.shape)[expert, place]
        return moved.flatten(0, 1)

    def sources(self) -> "tuple[torch.Tensor, torch.Tensor]":
        """src_info int32 [local experts, capacity], which token each row is, and layout_range int64
        [local experts, ranks], where each source's rows begin << 32 | how many they are."""
        room, (expert, place, source, token) = self.room, self._origins()
        src_info = torch.zeros(self.shape, dtype=torch.int32)
        src_info[expert, place] = token
        cells = expert * room.size + source
        counts = torch.bincount(cells, minlength=room.experts * room.size).view(room.experts, room.size)
        return src_info, (counts.cumsum(1) - counts) << 32 | counts

    def _origins(self) -> "tuple[torch.Tensor, ...]":
        """Expert, place, source and token of all rows."""
        if self._filled is None:
            raise Misuse("the handle's tensors are there once the hook was called")
        expert, place = self._rows(self._filled[0])
        codes = self._filled[1].view(self.shape)[expert, place].int()
        source = torch.div(codes, self.room.max_tokens, rounding_mode="floor")
        return expert, place, source, codes - source * self.room.max_tokens

    def outputs(self) -> torch.Tensor:
        """Where outputs may be written for a zero_copy combine."""
        return self.room.spare(self.slot, self.room.hidden, torch.bfloat16, False)

    def _rows(self, counts: torch.Tensor) -> "tuple[torch.Tensor, ...]":
        """Expert and place of all rows."""
        return (self.room.places < counts.unsqueeze(1)).nonzero(as_tuple=True)


def _quant(hidden: int, use_fp8: bool, round_scale: bool, use_ue8m0: bool) -> str:
    if not use_fp8:
        return "none"
    if use_ue8m0 and not round_scale:
        raise InvalidArgument("use_ue8m0 is True, expected round_scale=True with it")
    if use_ue8m0 and hidden % (4 * _FP8_BLOCK) != 0:
        raise InvalidArgument(f"hidden is {hidden}, expected a multiple of {4 * _FP8_BLOCK} with use_ue8m0")
    return "fp8_ue8m0" if use_ue8m0 else "fp8_pow2" if round_scale else "fp8"


def _once(work: "Callable[[], None]") -> "Callable[[], None]":
    """A hook: work, until it has succeeded once."""
    state = [work]

    def hook() -> None:
        if state:
            state[0]()
            state.clear()

    return hook


class LowLatencyCalls:
    """What Buffer inherits."""

    _peers: Peers
    enable_shrink: bool

    def _init_low_latency(self) -> None:
        self._rooms: "dict[Any, _Room]" = {}
        self._lost: "set[int]" = set()

    def _room(self, max_tokens: int, hidden: int, num_experts: int, topk: int) -> _Room:
        key = (max_tokens, hidden, num_experts, topk)
        room = self._rooms.get(key)
        if room is None:
            if num_experts % self._peers.size != 0:
                raise InvalidArgument(f"num_experts is {num_experts}, expected a multiple of {self._peers.size} "
                                      "ranks")
            self._peers.agree(num_max_dispatch_tokens_per_rank=max_tokens, hidden=hidden, num_experts=num_experts,
                              topk=topk)
            room = self._rooms[key] = _Room(self._peers, *key)
        return room

    def _wait(self, room: _Room, native: _core.Handle) -> None:
        try:
            room.channel.comm.wait(native)
        except PeerLost as lost:
            if not self.enable_shrink:
                raise
            self._lost.update(lost.missing)

    def low_latency_dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, num_max_dispatch_tokens_per_rank: int,
                             num_experts: int, cumulative_local_expert_recv_stats: "torch.Tensor | None" = None,
                             dispatch_wait_recv_cost_stats: "torch.Tensor | None" = None, use_fp8: bool = True,
                             round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
                             return_recv_hook: bool = False) -> Any:
        """Sends a row to each chosen expert.

        x: bfloat16 or float16 [num_tokens, hidden], at most num_max_dispatch_tokens_per_rank tokens.
        topk_idx: int64 [num_tokens, topk], -1 = none. use_fp8: rows are encoded as they are sent, with a
        scale for 128 columns; round_scale: of powers of two; use_ue8m0: whose exponents are packed.
        cumulative_local_expert_recv_stats: int32 [local experts], to which the counts are added.

        Returns recv_x [local experts, ranks * max_tokens, hidden], packed at the front of each expert by
        (source, token, k), or (float8_e4m3fn rows, scales [.., hidden / 128] float32 or [.., hidden / 512]
        int32, column-major); recv_count int32 [local experts]; the handle (src_info, layout_range,
        max_tokens, hidden, num_experts); an event; the hook or None. With return_recv_hook x must stay
        unchanged, and nothing may be read or sliced, until the hook was called. Rows are a view: valid
        until the handle's combine, or the fourth next call. Raises InvalidArgument, NotImplementedError
        for dispatch_wait_recv_cost_stats, and what Communicator.dispatch raises.
        """
        refuse("how long each source was waited for is not known",
               dispatch_wait_recv_cost_stats=dispatch_wait_recv_cost_stats)
        if async_finish and return_recv_hook:
            raise InvalidArgument("async_finish and return_recv_hook are True, expected one at most")
        hidden = x.size(1)
        quant = _quant(hidden, use_fp8, round_scale, use_ue8m0)
        room = self._room(num_max_dispatch_tokens_per_rank, hidden, num_experts, topk_idx.size(1))
        native = room.channel.start_dispatch(x, topk_idx, room.codes(x.size(0)), _OPTIONS[quant])
        arrival = _Arrival(room, native, x.dtype, quant)

        def receive() -> None:
            self._wait(room, native)
            arrival.fill()
            if cumulative_local_expert_recv_stats is not None:
                cumulative_local_expert_recv_stats.add_(arrival.counts)

        hook = _once(receive)
        if not return_recv_hook:
            hook()
        recv_x = arrival.x if arrival.scales is None else (arrival.x, arrival.scales)
        sizes = (num_max_dispatch_tokens_per_rank, hidden, num_experts)
        handle = LazyTuple(5, arrival, lambda: arrival.sources() + sizes)
        return recv_x, arrival.counts, handle, done(), hook if return_recv_hook else None

    def low_latency_combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, handle: Any,
                            use_logfmt: bool = False, zero_copy: bool = False, async_finish: bool = False,
                            return_recv_hook: bool = False, out: "torch.Tensor | None" = None,
                            combine_wait_recv_cost_stats: "torch.Tensor | None" = None) -> Any:
        """Sums each token's rows with its weights, in float32 and in the order of k.

        x: [local experts, ranks * max_tokens, hidden], bfloat16 or float16; with zero_copy what was
        written to get_next_low_latency_combine_buffer(handle) is taken instead. topk_idx int64 and
        topk_weights float32 [num_tokens, topk], of this rank's tokens. out: [num_tokens, hidden].
        Returns [num_tokens, hidden], an event, and the hook or None. With return_recv_hook x must stay
        unchanged until the hook was called. Raises InvalidArgument, NotImplementedError for use_logfmt
        and combine_wait_recv_cost_stats, and what Communicator.combine raises.
        """
        refuse("sums would be of rows in another precision", use_logfmt=use_logfmt)
        refuse("how long each source was waited for is not known",
               combine_wait_recv_cost_stats=combine_wait_recv_cost_stats)
        if async_finish and return_recv_hook:
            raise InvalidArgument("async_finish and return_recv_hook are True, expected one at most")
        arrival: _Arrival = route_of(handle)
        room, channel = arrival.room, arrival.room.channel
        y = (arrival.outputs() if zero_copy else x).flatten(0, 1)
        # The weights travel now; rows of the same routing lie where they lay.
        native = channel.start_dispatch(channel.nothing(topk_idx.size(0)), topk_idx, topk_weights, _OPTIONS["none"])
        self._wait(room, native)
        if self._lost:
            y = arrival.closed_up(y, native.received.sources)
        out = channel.comm.start_combine(native, y, out=out)

        def receive() -> None:
            self._wait(room, native)
            channel.release(arrival.native)

        hook = _once(receive)
        channel.when_vacated(native, hook)
        if arrival.native.holds_lease:
            channel.when_vacated(arrival.native, hook)
        if not return_recv_hook:
            hook()
        return out, done(), hook if return_recv_hook else None

    def get_next_low_latency_combine_buffer(self, handle: Any) -> torch.Tensor:
        """bfloat16 [local experts, ranks * max_tokens, hidden], to be filled for a zero_copy combine."""
        arrival: _Arrival = route_of(handle)
        return arrival.outputs()

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing: no call leaves anything that another would stumble over."""

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Accepted where it changes nothing. Raises NotImplementedError for a rank that is there and is to
        be masked, and for one that is lost and is to come back."""
        self._need_shrink()
        if mask != (rank_to_mask in self._lost):
            state = "is lost and cannot come back" if rank_to_mask in self._lost else "takes part"
            raise NotImplementedError(f"rank_to_mask={rank_to_mask}, mask={mask}: the rank {state}")

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """mask_status: int32 [ranks], set to 1 for ranks that were lost, else 0."""
        self._need_shrink()
        mask_status.zero_()
        mask_status[sorted(self._lost)] = 1

    def low_latency_clean_mask_buffer(self) -> None:
        """Nothing while no rank is lost; else NotImplementedError, for none comes back."""
        self._need_shrink()
        if self._lost:
            raise NotImplementedError(f"low_latency_clean_mask_buffer: ranks {sorted(self._lost)} are lost and "
                                      "cannot come back")

    def _need_shrink(self) -> None:
        if not self.enable_shrink:
            raise Misuse("masks of a Buffer that was made without enable_shrink=True")
