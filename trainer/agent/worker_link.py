"""The agent's end of the lines to the training processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from spotd import wire
from trainer.agent.sockets import Connection, Listener

# What a training process may journal; the rest is the agent's own to say.
WORKER_KINDS = frozenset(
    {wire.READY, wire.CLAIMED, wire.PROGRESS, wire.CHECKPOINT, wire.CHECKPOINT_FAILED}
    | {wire.CHECKPOINT_SKIPPED, wire.ROLLED_BACK, wire.RELEASED, wire.WARNING}
)


MAX_BUSY_S = 10 * 365 * 86_400.0  # longer than any program runs


class WorkerListener(Protocol):
    """Who hears the training processes; called from the threads of their connections."""

    def on_fact(self, kind: str, data: Mapping[str, Any]) -> None:
        """Something for the journal; the kind has been checked."""
        ...

    def on_worker_exit(self, rank: int, code: int) -> None:
        """A training process says how it is about to end."""
        ...

    def on_busy(self, for_s: float) -> None:
        """A training process is alive, and may be silent for so long."""
        ...

    def on_nonsense(self, text: str) -> None:
        """A line that means nothing."""
        ...

    def on_hang_up(self) -> None:
        """A training process says nothing more: `connected` is one less."""
        ...


class WorkerLink:
    """Shows every connected process the current flag, at once and at every change."""

    def __init__(
        self, path: Path, flag_of: Callable[[], Mapping[str, Any]], listener: WorkerListener
    ) -> None:
        self._flag_of = flag_of
        self._listener = listener
        self._lines: set[Connection] = set()
        self._lock = threading.Lock()
        self._socket = Listener(path, self._serve)

    @property
    def connected(self) -> int:
        """How many training processes listen."""
        with self._lock:
            return len(self._lines)

    def publish(self) -> None:
        """The flag has changed."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.send(self._flag())

    def close(self) -> None:
        self._socket.close()

    def _flag(self) -> bytes:
        return wire.encode({"flag": dict(self._flag_of())})

    def _serve(self, line: Connection) -> None:
        if not self._greeted(line.read_line()):
            return
        with self._lock:
            self._lines.add(line)
        try:
            # After it is known to `publish`, so that no change falls between the two.
            line.send(self._flag())
            while text := line.read_line():
                self._hear(text)
        finally:
            with self._lock:
                self._lines.discard(line)
            self._listener.on_hang_up()

    def _greeted(self, text: bytes) -> bool:
        hello = _parse(text).get("hello")
        if text and not isinstance(hello, dict):
            self._listener.on_nonsense(f"no hello but {text[:100]!r}")
        return isinstance(hello, dict)

    def _hear(self, text: bytes) -> None:
        message = _parse(text)
        kind, data, leaving = message.get("kind"), message.get("data"), message.get("exit")
        busy_s = message.get("busy_s")
        if isinstance(kind, str) and kind in WORKER_KINDS and isinstance(data, dict):
            self._listener.on_fact(kind, data)
        elif isinstance(leaving, dict):
            rank, code = leaving.get("rank"), leaving.get("code")
            if isinstance(rank, int) and isinstance(code, int):
                self._listener.on_worker_exit(rank, code)
        elif _is_time(busy_s):
            self._listener.on_busy(float(busy_s))
        else:
            self._listener.on_nonsense(f"not a message: {text[:100]!r}")


def _is_time(value: Any) -> TypeGuard[int | float]:
    """Whether these are seconds: JSON has numbers that no float holds, Python's also NaN."""
    return isinstance(value, int | float) and -MAX_BUSY_S <= value <= MAX_BUSY_S


def _parse(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
