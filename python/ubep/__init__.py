"""Expert parallelism of Mixture-of-Experts models between processes of one host.

    comm = ubep.init(num_experts=64, max_tokens=128, max_hidden=4096)
    handle = comm.dispatch(x, topk_idx, topk_weights, layout="expert_major")
    handle.expert_output[:] = experts(handle.received.rows, handle.received.expert_counts)
    y = comm.combine(handle)

docs/python.md of the project tells the rest.
"""

from ._bootstrap import (
    from_environment,
    from_process_group,
    from_store,
    init,
    local,
)
from ._core import (
    Bootstrap,
    Communicator,
    CommunicatorFacts,
    DispatchOptions,
    DType,
    Handle,
    Layout,
    MemoryPlan,
    OperationStats,
    Path,
    Placement,
    Protocol,
    Quant,
    Received,
    Reduction,
    SendOrder,
    Store,
    ThreadGroup,
    Weighting,
    __version__,
    build_facts,
    dequantize,
    quantize,
    quantized_row_bytes,
    scale_place,
)
from ._errors import (
    Corrupt,
    Error,
    InvalidArgument,
    Mismatch,
    Misuse,
    NoCapacity,
    NotReady,
    PeerLost,
    SetupError,
    SlotBusy,
    StatusError,
    Timeout,
)
from .expert_parallel import Dispatched, ExpertParallel

__all__ = [name for name in dir() if name[0].isalpha() and name != "expert_parallel"]
