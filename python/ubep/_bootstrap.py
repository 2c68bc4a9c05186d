"""How ranks of Python find each other; each of these gives a Bootstrap."""

import socket
import uuid
from typing import Any

from ._core import Bootstrap, Communicator
from ._errors import SetupError


def from_environment() -> Bootstrap:
    """The rank that a launcher (torchrun, mpirun, srun, a script) tells of by its variables."""
    return Bootstrap.from_environment()


def local(rank: int, size: int, job: str, *, timeout: float = 30.0, members: "list[int] | None" = None, key: str = "") -> Bootstrap:
    """A rank given by hand, as under `multiprocessing`; `job` names the rendezvous, `members` the ranks
    that take part (None = all of them), `key` a secret that they share; all three the same on all."""
    return Bootstrap(rank, size, job, timeout, members or [], key)


def _name() -> str:
    return f"{socket.gethostname()}/{uuid.uuid4().hex}"


def _check_host(name: str, rank: int) -> None:
    host = name.rsplit("/", 1)[0]
    if host != socket.gethostname():
        raise SetupError(
            f"rank {rank} is on host {socket.gethostname()}, expected {host} as rank 0: "
            "the ranks of a communicator share one host"
        )


def from_process_group(group: Any = None, *, timeout: float = 30.0) -> Bootstrap:
    """The ranks of a torch process group; None = the default one. Collective."""
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    names = [_name() if rank == 0 else None]
    dist.broadcast_object_list(names, src=dist.get_global_rank(group or dist.group.WORLD, 0), group=group)
    _check_host(names[0], rank)
    return Bootstrap(rank, size, names[0], timeout)


def from_store(store: Any, rank: int, size: int, *, key: str = "ubep", timeout: float = 30.0) -> Bootstrap:
    """Ranks that share a torch Store (TCPStore, FileStore). One key serves one communicator."""
    if rank == 0:
        store.set(key, _name())
    name = store.get(key).decode()
    _check_host(name, rank)
    return Bootstrap(rank, size, name, timeout)


def init(bootstrap: "Bootstrap | None" = None, **options: Any) -> Communicator:
    """A communicator of the launcher's ranks, or of `bootstrap`.

    Options are those of Communicator.create: num_experts and max_hidden, max_tokens, max_dtype,
    max_topk, slots, timeout (seconds) and others. Collective.
    """
    return Communicator.create(bootstrap or from_environment(), **options)
