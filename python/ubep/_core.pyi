"""The C++ library, bound header by header."""

from collections.abc import Callable, Sequence
import enum
from typing import Any

import numpy.typing


def build_facts() -> str:
    """
    Versions, commit, compiler, sanitizers and instruction sets: three lines of text.
    """

class DType(enum.Enum):
    """Element type of rows; u8 are bytes that nobody looks into."""

    bf16 = 0

    fp16 = 1

    fp32 = 2

    u8 = 3

class Layout(enum.Enum):
    """Arrangement of received rows."""

    rank_major = 0
    """A token once for each rank; its owner weights it."""

    expert_major = 1
    """One row per choice, packed by local expert."""

    expert_padded = 2
    """The same, each expert in `capacity` rows."""

class Path(enum.Enum):
    """How rows reach their owner."""

    automatic = 0

    read = 1

    pull = 2

    push = 3

    bsp = 4

    allgather = 5

    relay = 6

class Protocol(enum.Enum):
    """How pushed rows are known to have arrived."""

    automatic = 0

    put_with_signal = 1

    token_flag_16 = 2

    token_flag_128 = 3

    token_flag_512 = 4

    checksum = 5

    sentinel = 6

    fence = 7

class Store(enum.Enum):
    """How lines that cross between ranks are stored."""

    automatic = 0

    near = 1

    far = 2

class Reduction(enum.Enum):
    """What the bits of a combined row depend on."""

    automatic = 0

    exact = 1

    per_rank = 2

    per_host = 3

class Weighting(enum.Enum):
    """Who multiplies rank_major rows by their weights."""

    kernel = 0

    owner = 1

class Quant(enum.Enum):
    """Format of quantised rows."""

    none = 0

    fp8 = 1

    fp8_pow2 = 2

    fp8_ue8m0 = 3

    int8 = 4

    mxfp8 = 5

class Placement(enum.Enum):
    """Distance of two CPUs as a flag sees it."""

    unknown = 0

    smt = 1

    near = 2

    far = 3

class SendOrder(enum.Enum):
    """In what order several lanes push rows."""

    scheduled = 0

    by_token = 1

class Bootstrap:
    """
    How the ranks of one communicator find each other.

    rank: 0..size-1. job: names the rendezvous, the same on all ranks.
    timeout: seconds, or a timedelta, in which all ranks must arrive.
    members: the ranks that take part, the same on all; empty = all of them.
    key: a secret that the ranks share; empty = none.
    address: the host of the first member, where ranks of several hosts meet
    over TCP; empty = one host. port: where; 0 = 28237.
    """

    def __init__(self, rank: int, size: int, job: str, timeout: float = 30.0, members: Sequence[int] = [], key: str = '', address: str = '', port: int = 0) -> None: ...

    @staticmethod
    def from_environment() -> Bootstrap:
        """The rank that a launcher's variables tell of; raises SetupError."""

    @staticmethod
    def in_environment() -> bool:
        """Whether any of these variables are there."""

    @property
    def rank(self) -> int: ...

    @rank.setter
    def rank(self, arg: int, /) -> None: ...

    @property
    def size(self) -> int: ...

    @size.setter
    def size(self, arg: int, /) -> None: ...

    @property
    def job(self) -> str: ...

    @job.setter
    def job(self, arg: str, /) -> None: ...

    @property
    def members(self) -> list[int]: ...

    @members.setter
    def members(self, arg: Sequence[int], /) -> None: ...

    @property
    def key(self) -> str: ...

    @key.setter
    def key(self, arg: str, /) -> None: ...

    @property
    def address(self) -> str: ...

    @address.setter
    def address(self, arg: str, /) -> None: ...

    @property
    def port(self) -> int: ...

    @port.setter
    def port(self, arg: int, /) -> None: ...

    @property
    def timeout(self) -> float:
        """Seconds in which all ranks must arrive."""

    @timeout.setter
    def timeout(self, arg: float, /) -> None: ...

    @property
    def launcher(self) -> str: ...

    def __repr__(self) -> str: ...

class ThreadGroup:
    """Ranks as threads of this process, for tests."""

    def __init__(self, size: int) -> None: ...

    def bootstrap(self, rank: int) -> Bootstrap: ...

class MemoryPlan:
    """Bytes of one rank."""

    @property
    def shared_bytes(self) -> int:
        """Of its segment and inbox, reserved."""

    @property
    def private_bytes(self) -> int:
        """Of its private row areas, reserved."""

    @property
    def expected_resident_bytes(self) -> int:
        """What a balanced routing touches with every slot full."""

    @property
    def reserved_bytes(self) -> int: ...

class OperationStats:
    """One dispatch of this rank, and its combine."""

    @property
    def path(self) -> Path:
        """What `automatic` became."""

    @property
    def store(self) -> Store: ...

    @property
    def reason(self) -> str:
        """Why that path."""

    @property
    def roles(self) -> tuple[int, int, int]:
        """Lanes that count, send and receive; of one lane all 0."""

    @property
    def dispatch_copied_bytes(self) -> int: ...

    @property
    def combine_copied_bytes(self) -> int: ...

class CommunicatorFacts:
    """What set-up found out."""

    @property
    def placement(self) -> Placement:
        """Of this rank and rank 0."""

    @property
    def flag_one_way_ns(self) -> float:
        """0 = not measured."""

    @property
    def probes(self) -> int: ...

    @property
    def store(self) -> Store:
        """What `automatic` became."""

    @property
    def store_reason(self) -> str:
        """Why."""

    @property
    def host_of(self) -> list[int]:
        """
        Of each rank a number that those of its host have alike; empty on one host.
        """

    @property
    def host_names(self) -> list[str]: ...

    @property
    def transport(self) -> str:
        """Between hosts."""

    @property
    def host_bytes(self) -> int:
        """Put to ranks of other hosts so far."""

class DispatchOptions:
    """
    Keyword arguments of a dispatch, made once: dispatch(..., options=DispatchOptions(...)).
    Enumerations are given as members or by name.
    """

    def __init__(self, *, layout: Layout | str = ..., path: Path | str = ..., reduction: Reduction | str = ..., weighting: Weighting | str = ..., topk1: bool = False, in_place: bool = False, contiguous: bool = False, mapped_view: bool = False, expert_alignment: int = 1, expert_capacity: int = 0, by_expert: bool = False, quant: Quant | str = ...) -> None: ...

    def __getattr__(self, arg: str, /) -> object: ...

class Received:
    """
    Received rows of one dispatch. Reading any of it raises Misuse once the lease has ended;
    index arrays are copies and stay. N = num_rows, K = topk.
    """

    @property
    def rows(self) -> Any:
        """
        The rows where they lie, without a copy: [num_rows, hidden] of `dtype`, or uint8
        [num_rows, bytes of values and scales] where they are quantised. Rows are apart
        from one another. Raises Misuse where they are not one tensor (rank_major,
        unless contiguous or in_place). Undefined after the lease, but still there.
        """

    @property
    def blocks(self) -> Any:
        """
        rank_major, pulled or pushed: [size, most rows of a source, hidden]; of source q
        the first src_counts[q] rows are meant.
        """

    def copy_rows(self, out: numpy.typing.ArrayLike | None = None) -> Any:
        """All rows, copied to `out` or a new array, as `rows` describes them."""

    @property
    def addresses(self) -> Any:
        """uint64 [num_rows]: where each row lies, for kernels."""

    def payload(self, name: str) -> Any:
        """uint8 [num_rows, bytes]: what travelled with each row."""

    def scales(self, column_major: bool = False) -> Any:
        """
        Scales of quantised rows, copied: [num_rows, count], float32, or uint8 exponents.
        """

    @property
    def mapped(self) -> Any:
        """
        mapped_view: all peers' tokens, NumPy [size, max_tokens, hidden], read-only.
        """

    @property
    def mapped_idx(self) -> Any: ...

    @property
    def mapped_weights(self) -> Any: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def hidden(self) -> int: ...

    @property
    def topk(self) -> int: ...

    @property
    def quant(self) -> Quant: ...

    @property
    def row_bytes(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def overflow(self) -> int: ...

    @property
    def sources(self) -> list[int]:
        """The ranks that took part."""

    @property
    def scale_place(self) -> tuple[int, int, int, int]:
        """
        (offset in bytes, count, bytes of one, elements that share one) of a row's scales.
        """

    @property
    def src_counts(self) -> Any: ...

    @property
    def expert_rows(self) -> Any: ...

    @property
    def expert_counts(self) -> Any: ...

    @property
    def expert_offsets(self) -> Any: ...

    @property
    def topk_idx(self) -> Any:
        """
        rank_major: int32 [N, K] local expert ids, -1 = not here ([N] for topk1). N is the
        number of rows of `out` where rows went there.
        """

    @property
    def topk_weights(self) -> Any:
        """rank_major: float32 [N, K], 0 where topk_idx is -1 ([N] for topk1)."""

class Handle:
    """
    What dispatch returns and combine needs. While its lease lasts it holds a slot of the
    communicator; its views stay readable for as long as they live, with undefined content once
    the lease has ended. Dropping the last reference ends the lease.
    """

    def __init__(self) -> None: ...

    @property
    def received(self) -> Received:
        """
        Received rows. Raises Misuse unless the dispatch is complete and the lease is held.
        """

    @property
    def expert_output(self) -> Any:
        """
        Where expert outputs may be written, without a copy: [num_rows, hidden]; with
        weighting 'owner' [expert rows, hidden]. Raises Misuse as `received`.
        """

    def row_weights(self) -> Any:
        """
        Expert layouts: float32 [num_rows], the top-k weight of each row; 0 of padding.
        """

    def row_choices(self) -> Any:
        """
        Expert layouts and topk1: int32 [num_rows], which choice k each row is; -1 of padding.
        """

    def valid_tokens(self) -> Any:
        """
        After combine: bool [num_tokens], True = every chosen expert contributed.
        """

    @property
    def stats(self) -> OperationStats: ...

    @property
    def holds_lease(self) -> bool: ...

    @property
    def epoch(self) -> int:
        """Of the latest dispatch; 0 = never dispatched."""

    @property
    def communicator(self) -> Communicator | None:
        """Whose dispatches these are; None = never dispatched."""

    @property
    def num_tokens(self) -> int:
        """Tokens that this rank sent in the latest dispatch."""

class Communicator:
    """
    A fixed set of ranks that exchange tokens. All ranks start operations in the same order;
    one thread at a time calls it, but for step(), poll(), poll_expert(), publish() and wait().
    """

    @staticmethod
    def create(bootstrap: Bootstrap, *, num_experts: int, expert_rank: Sequence[int] | None = None, max_tokens: int = 0, max_hidden: int, max_dtype: DType | str = ..., max_payload: int = 0, max_topk: int = 8, slots: int = 2, expert_capacity: int = 0, push: bool = True, protocol: Protocol | str = ..., checksum_rows: int = 0, bsp: bool = False, stage_pushed: bool = False, store: Store | str = ..., timeout: float = 0) -> Communicator:
        """
        Collective, with the same options on every rank (store and timeout are a rank's
        own). timeout: seconds of waiting calls; 0 = UBEP_TIMEOUT_MS, else 30 s.
        Raises InvalidArgument and SetupError within the bootstrap's timeout.
        """

    @staticmethod
    def plan_memory(rank: int, size: int, *, num_experts: int, expert_rank: Sequence[int] | None = None, max_tokens: int = 0, max_hidden: int, max_dtype: DType | str = ..., max_payload: int = 0, max_topk: int = 8, slots: int = 2, expert_capacity: int = 0, push: bool = True, protocol: Protocol | str = ..., checksum_rows: int = 0, bsp: bool = False, stage_pushed: bool = False, store: Store | str = ..., timeout: float = 0) -> MemoryPlan:
        """What create() would reserve on `rank` of `size`."""

    def close(self) -> None:
        """Local and idempotent. Views stay readable."""

    def update_membership(self, members: Sequence[int]) -> Communicator:
        """
        A communicator of these ranks of this one, and of processes that create theirs with the
        same Bootstrap.members at about that time (restarted ranks, or others up to size). This
        one is closed. Collective. Raises SetupError within the bootstrap's timeout when one
        does not come; then this one is as it was.
        """

    def mask(self, rank: int) -> None:
        """
        Ends the process of a rank that hangs (SIGKILL): it is then lost for all.
        Raises Misuse for the own rank and where ranks are threads, SetupError if it may not.
        """

    @property
    def members(self) -> list[int]:
        """Ranks that took part from its creation on, lost ones included."""

    def __enter__(self) -> Communicator: ...

    def __exit__(self, *args: object) -> None: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def num_local_experts(self) -> int: ...

    @property
    def local_experts(self) -> list[int]:
        """Global ids of this rank's experts; the i-th has the local id i."""

    @property
    def num_experts(self) -> int:
        """Of all ranks."""

    @property
    def max_tokens(self) -> int:
        """Of one rank in one dispatch."""

    @property
    def max_topk(self) -> int:
        """Most choices of a token."""

    @property
    def max_hidden(self) -> int:
        """With max_dtype the largest row."""

    @property
    def max_dtype(self) -> DType:
        """With max_hidden the largest row."""

    @property
    def slots(self) -> int:
        """Dispatches in flight."""

    @property
    def expert_capacity(self) -> int:
        """Most rows of a local expert in expert_padded; 0 = not used."""

    @property
    def facts(self) -> CommunicatorFacts: ...

    @property
    def memory(self) -> MemoryPlan: ...

    @property
    def timeout(self) -> float:
        """Seconds that a waiting call takes at most."""

    def dispatch(self, x: numpy.typing.ArrayLike, topk_idx: numpy.typing.ArrayLike, topk_weights: numpy.typing.ArrayLike, *, out: numpy.typing.ArrayLike | None = None, active: numpy.typing.ArrayLike | None = None, handle: Handle | None = None, payloads: dict[str, numpy.typing.ArrayLike] | None = None, options: DispatchOptions | None = None, layout: Layout | str = ..., path: Path | str = ..., reduction: Reduction | str = ..., weighting: Weighting | str = ..., topk1: bool = False, in_place: bool = False, contiguous: bool = False, mapped_view: bool = False, expert_alignment: int = 1, expert_capacity: int = 0, by_expert: bool = False, quant: Quant | str = ...) -> Handle:
        """
        Sends x [num_tokens, hidden] to the owners of its experts and waits for all rows.

        x: rows of bfloat16, float16, float32, or of bytes (uint8, int8, 8-bit floats); the
        elements of a row side by side. It must stay unchanged until the lease ends.
        topk_idx: int32 or int64 [num_tokens, topk], -1 = none. topk_weights: float32.
        active: bool or uint8 [num_tokens]; a token with 0 takes no part, whatever its choices.
        handle: one to use again. payloads: bytes that travel with each token, [num_tokens, ..].
        out: where received rows are written, [rows, hidden] of x's dtype, apart from x; expert
        layouts and contiguous, without quant, payloads and in_place. If more rows come than
        it has, NoCapacity is raised, and the rows are in the library's memory: nothing is lost.
        Raises InvalidArgument, Misuse, SlotBusy, NoCapacity, Timeout, PeerLost, Mismatch,
        Corrupt; the exception's `handle` goes on where a signal or a timeout interrupted.
        """

    def start_dispatch(self, x: numpy.typing.ArrayLike, topk_idx: numpy.typing.ArrayLike, topk_weights: numpy.typing.ArrayLike, *, out: numpy.typing.ArrayLike | None = None, active: numpy.typing.ArrayLike | None = None, handle: Handle | None = None, payloads: dict[str, numpy.typing.ArrayLike] | None = None, options: DispatchOptions | None = None, layout: Layout | str = ..., path: Path | str = ..., reduction: Reduction | str = ..., weighting: Weighting | str = ..., topk1: bool = False, in_place: bool = False, contiguous: bool = False, mapped_view: bool = False, expert_alignment: int = 1, expert_capacity: int = 0, by_expert: bool = False, quant: Quant | str = ...) -> Handle:
        """
        The same without waiting. NotReady, SlotBusy and NoCapacity publish nothing: step()
        and try again.
        """

    def dispatch_cached(self, x: numpy.typing.ArrayLike, cached: Handle, *, out: numpy.typing.ArrayLike | None = None, handle: Handle | None = None, payloads: dict[str, numpy.typing.ArrayLike] | None = None) -> Handle:
        """
        Sends x with routing and options of `cached`, whose dispatch completed; on all ranks a
        handle of the same dispatch. `handle` may be `cached`.
        """

    def start_dispatch_cached(self, x: numpy.typing.ArrayLike, cached: Handle, *, out: numpy.typing.ArrayLike | None = None, handle: Handle | None = None, payloads: dict[str, numpy.typing.ArrayLike] | None = None) -> Handle:
        """The same without waiting."""

    def run_layer(self, x: numpy.typing.ArrayLike, topk_idx: numpy.typing.ArrayLike, topk_weights: numpy.typing.ArrayLike, *, experts: Callable[[Handle], object], out: numpy.typing.ArrayLike | None = None, active: numpy.typing.ArrayLike | None = None, handle: Handle | None = None, payloads: dict[str, numpy.typing.ArrayLike] | None = None, options: DispatchOptions | None = None, layout: Layout | str = ..., path: Path | str = ..., reduction: Reduction | str = ..., weighting: Weighting | str = ..., topk1: bool = False, in_place: bool = False, contiguous: bool = False, mapped_view: bool = False, expert_alignment: int = 1, expert_capacity: int = 0, by_expert: bool = False, quant: Quant | str = ...) -> Any:
        """
        A layer of any number of tokens in rounds of max_tokens. experts(handle) is called once
        a round; it reads handle.received and writes handle.expert_output. Returns `out`,
        [num_tokens, hidden]. After Timeout, SlotBusy, a signal or an exception of `experts`
        the same call with the same x, out and handle goes on where it was.
        """

    def combine(self, handle: Handle, y: numpy.typing.ArrayLike | None = None, *, out: numpy.typing.ArrayLike | None = None, unweighted: bool = False, added: Sequence[numpy.typing.ArrayLike] = ()) -> Any:
        """
        Brings expert outputs back, one sum per token, and ends the lease.

        y: [num_rows, hidden] by received row, of float32, bfloat16 or float16 (weighting
        'owner': [expert rows, hidden]); None = they were written to handle.expert_output.
        Another hidden and dtype than the dispatch's is allowed, the same on all ranks.
        out: [num_tokens, hidden] of y's dtype; overlaps no input. unweighted: plain sums.
        added: up to two matrices like out that are added before the one rounding.
        Returns out. Raises as dispatch; the exception has `handle`, and `out` where known.
        """

    def start_combine(self, handle: Handle, y: numpy.typing.ArrayLike | None = None, *, out: numpy.typing.ArrayLike | None = None, unweighted: bool = False, added: Sequence[numpy.typing.ArrayLike] = (), by_expert: bool = False) -> Any:
        """
        The same without waiting; the result is there once wait(handle) returned. by_expert:
        expert layouts; outputs are not complete yet, publish() announces each local expert's.
        """

    def publish(self, handle: Handle, expert: int) -> None:
        """
        After start_combine(by_expert=True), once for each local expert in any order: its
        outputs are complete. Threads may call it, beside step() and wait(). Raises
        InvalidArgument, Misuse, and Mismatch or Corrupt of a communicator that failed.
        """

    def step(self, lane: int = 0, lanes: int = 1) -> int:
        """
        Moves every started operation on without waiting; returns the work done, 0 = idle.
        Threads may call it at once, each with a lane of its own, also beside wait().
        """

    def poll(self, handle: Handle) -> bool:
        """
        Whether the handle's latest operation is complete; raises what it ended with.
        """

    def wait(self, handle: Handle, timeout: float | None = None) -> None:
        """
        Until the handle's latest operation is complete; `timeout` in seconds. Timeout and
        KeyboardInterrupt leave it pending.
        """

    def poll_expert(self, handle: Handle, expert: int) -> bool:
        """
        After a dispatch with by_expert: whether the rows of the local expert are here, often
        before the dispatch is complete; received and expert_output may then be read, for the
        rows of such experts. Threads may call it. Raises what the dispatch ended with,
        InvalidArgument and Misuse.
        """

    def wait_expert(self, handle: Handle, expert: int, timeout: float | None = None) -> None:
        """Until poll_expert() is true; as wait()."""

    def release(self, handle: Handle) -> None:
        """Ends the lease without a combine."""

    def input(self, num_tokens: int, hidden: int, dtype: DType | str, torch: bool = False) -> Any:
        """
        A buffer for the next dispatch's x, which must be passed to it. Raises SlotBusy, and
        NotReady until peers have given their slot back: step() and try again.
        """

    def set_lanes(self, lanes: int, roles: Sequence[int] = (0, 0, 0), order: SendOrder | str = 'scheduled') -> None:
        """
        How many lanes will call step() at once, 1..64. No operation may be pending.
        """

    def trace(self, on: bool) -> None:
        """Starts, with all times at 0, or ends lane_times()."""

    def lane_times(self, lane: int = 0) -> dict[str, int]:
        """Nanoseconds that a lane spent on each activity since trace(True)."""

def quantize(x: numpy.typing.ArrayLike, quant: Quant | str) -> Any:
    """
    x [n, hidden] as a dispatch with `quant` would send it: uint8 [n, bytes of a row].
    """

def dequantize(rows: numpy.typing.ArrayLike, quant: Quant | str, hidden: int, dtype: DType | str) -> Any:
    """Rows that quantize() or a dispatch made, [n, hidden] of `dtype` again."""

def quantized_row_bytes(quant: Quant | str, hidden: int) -> int:
    """Bytes of a quantised row: values, then scales."""

def scale_place(quant: Quant | str, hidden: int) -> tuple[int, int, int, int]:
    """
    (offset in bytes, count, bytes of one, elements that share one) of a row's scales.
    """
