"""Wait for data on many streams, or for a nudge."""

from __future__ import annotations

import os
import selectors
import threading
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class StreamSelector(Protocol[T]):
    """A selector of streams. Only `nudge` may be called from other threads."""

    def watch(self, descriptor: int, who: T) -> None:
        """Report `who` when its descriptor has data."""
        ...

    def forget(self, descriptor: int) -> None:
        """Stop watching the descriptor; it may be closed then."""
        ...

    def wait(self, timeout_s: float) -> list[T]:
        """Return the nodes whose streams have data; none after `timeout_s` or a nudge."""
        ...

    def nudge(self) -> None:
        """Have `wait` return soon. From any thread, also after `close`."""
        ...

    def close(self) -> None: ...


class SystemSelector(Generic[T]):
    """A selector of the operating system, with a pipe for nudges."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._nudged, self._nudge = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()  # of the pipe's end: who nudges may be late
        self._selector.register(self._nudged, selectors.EVENT_READ, None)

    def watch(self, descriptor: int, who: T) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, who)

    def forget(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def wait(self, timeout_s: float) -> list[T]:
        ready = []
        for key, _ in self._selector.select(timeout=timeout_s):
            if key.data is None:
                _drain(self._nudged)
            else:
                ready.append(key.data)
        return ready

    def nudge(self) -> None:
        with self._lock:
            if self._nudge < 0:
                return
            try:
                os.write(self._nudge, b"x")
            except BlockingIOError:
                return  # the pipe is full of nudges already

    def close(self) -> None:
        self._selector.close()
        with self._lock:
            for descriptor in (self._nudged, self._nudge):
                os.close(descriptor)
            self._nudge = -1


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        return
