"""What the package raises. The text is the library's: it names what was seen and expected."""

import re
from typing import Any


class Error(RuntimeError):
    """All errors of the library. `code` is its short name."""

    code = "error"


class InvalidArgument(Error, ValueError):
    """A value that can never be right; `argument` names it."""

    code = "invalid_argument"

    @property
    def argument(self) -> str:
        found = re.match(r"[\w.]+", str(self))
        return found[0] if found else ""


class Misuse(Error):
    """A call in the wrong state: after close, in a forked child, before its turn."""

    code = "misuse"


class SetupError(Error):
    """Rendezvous, memory or a system call failed."""

    code = "setup"


class StatusError(Error):
    """How an operation ended.

    kind: "dispatch" or "combine"; word: what it waited for or disagreed about; rank: who reports;
    peer: the first rank concerned; epoch: of the operation; expected, seen: values of the word or
    of `what`; missing: ranks still awaited, or lost. handle: the Handle, where there is one; out:
    the result of a combine, as far as it goes.
    """

    kind = "none"
    word = "none"
    rank = -1
    peer = -1
    epoch = 0
    expected = 0
    seen = 0
    what = ""
    missing: "list[int]" = []
    handle: Any = None
    out: Any = None


class NotReady(StatusError):
    """A peer, or an earlier operation, is not there yet; step() and try again."""

    code = "not_ready"


class SlotBusy(StatusError):
    """The next slot is leased: combine or release its dispatch first."""

    code = "slot_busy"


class Timeout(StatusError, TimeoutError):
    """The deadline passed; the operation stays pending, wait() goes on."""

    code = "timeout"


class PeerLost(StatusError):
    """A peer died, left or failed. The operation was finished for the others."""

    code = "peer_lost"


class Mismatch(StatusError):
    """Ranks started different operations; the communicator has failed."""

    code = "mismatch"


class Corrupt(StatusError):
    """A peer's shared memory holds impossible values; the communicator has failed."""

    code = "corrupt"


class NoCapacity(StatusError):
    """More rows than were declared."""

    code = "no_capacity"


_CLASSES = {
    cls.code: cls
    for cls in (InvalidArgument, Misuse, SetupError, NotReady, SlotBusy, Timeout, PeerLost,
                Mismatch, Corrupt, NoCapacity)
}


def make(code: str, message: str, attributes: "dict[str, Any] | None" = None) -> Error:
    """The exception of a code, for the extension module."""
    error = _CLASSES.get(code, Error)(message)
    error.__dict__.update(attributes or {})
    return error
