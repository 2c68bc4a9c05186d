"""The ranks of a buffer: small exchanges, a word of each rank that all see, and communicators."""

import mmap
import os
import socket
import uuid
import weakref
from typing import Any

from .. import _core
from .._errors import InvalidArgument, Misuse, SetupError
from ._channel import Channel

_DIRECTORY = "/dev/shm"


def _map(path: str, size: int, create: bool) -> memoryview:
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
    fd = os.open(path, flags, 0o600)
    try:
        if create:
            os.ftruncate(fd, size)
        return memoryview(mmap.mmap(fd, size)).cast("q")
    finally:
        os.close(fd)


class Peers:
    """Ranks of a torch process group, or of an mpi4py communicator. Making one is collective.

    words: int64 [size] in memory of all ranks; a rank writes its own before a native call, and who
    has seen that call's data sees the word.
    """

    def __init__(self, group: Any = None, comm: Any = None) -> None:
        if group is None and comm is None:
            raise ValueError("group and comm are None, expected one of them")
        self._group, self._comm = group, comm
        self.rank: int = group.rank() if group is not None else comm.Get_rank()
        self.size: int = group.size() if group is not None else comm.Get_size()
        self._opened, self._closed = 0, False
        self._channels: "weakref.WeakSet[Channel]" = weakref.WeakSet()
        host = socket.gethostname()
        path = f"{_DIRECTORY}/ubep-deep-ep-{uuid.uuid4().hex}"
        if self.rank == 0:
            self.words = _map(path, 8 * self.size, True)
        found = self.gather((host, path))
        hosts = sorted({h for h, _ in found})
        if len(hosts) > 1:
            raise SetupError(f"the ranks are on hosts {', '.join(hosts)}: expected one host")
        self._job = found[0][1]
        if self.rank != 0:
            self.words = _map(self._job, 8 * self.size, False)
        self.gather(None)
        if self.rank == 0:
            os.unlink(self._job)

    def gather(self, value: Any) -> "list[Any]":
        """What each rank gave, by rank. Collective."""
        if self._group is None:
            return self._comm.allgather(value)
        import torch.distributed as dist

        values: "list[Any]" = [None] * self.size
        dist.all_gather_object(values, value, self._group)
        return values

    def agree(self, **facts: Any) -> None:
        """Raises InvalidArgument on all ranks where they gave different facts. Collective."""
        for rank, theirs in enumerate(self.gather(facts)):
            for name, value in facts.items():
                if theirs.get(name) != value:
                    raise InvalidArgument(f"{name} is {value} on rank {self.rank} and {theirs.get(name)} on "
                                          f"rank {rank}, expected the same")

    def open(self, payload: "str | None" = None, **options: Any) -> Channel:
        """A channel of these ranks; options are those of Communicator.create. Collective, with equal
        options. Raises Misuse after close()."""
        if self._closed:
            raise Misuse("the buffer was destroyed")
        self._opened += 1
        boot = _core.Bootstrap(self.rank, self.size, f"{self._job}/{self._opened}")
        channel = Channel(_core.Communicator.create(boot, **options), self._opened, payload)
        self._channels.add(channel)
        return channel

    def close(self) -> None:
        """Closes all channels, also those that only handles still hold. Local."""
        self._closed = True
        for channel in self._channels:
            channel.comm.close()
