"""Events. On a CPU a call has done its work when it returns, so an event is complete when it is made."""

from typing import Any, Callable


class EventHandle:
    """A point in a stream; here one that has been passed."""

    def current_stream_wait(self) -> None:
        """Nothing to wait for."""


class EventOverlap:
    """What calls return in the place of an event, and a context whose end waits for it.

    event: an EventHandle or None. extra_tensors: kept alive as long as this object.
    """

    def __init__(self, event: "EventHandle | None" = None, extra_tensors: Any = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: "Callable[[], Any] | None" = None
        self._releases = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Calls the registered hook, once. release_handle: forget the event."""
        if self.event is None:
            raise AssertionError("this EventOverlap has no event: it was released, or never captured")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: "Callable[[], Any]") -> None:
        """One function that the next wait calls."""
        if self.hook_after_wait is not None:
            raise AssertionError("a hook is already registered on this EventOverlap")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> "EventOverlap":
        """Whether the context's end forgets the event."""
        self._releases = release_handle
        return self

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *_: object) -> None:
        releases, self._releases = self._releases, False
        if self.event is not None:
            self.current_stream_wait(release_handle=releases)


def done() -> EventOverlap:
    """An event that has happened."""
    return EventOverlap(EventHandle())
