"""The agent's end of the lines to the training processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from spotd import wire
from trainer.agent.base.sockets import Connection, Listener

# What a training process may journal; the rest is the agent's own to say.
WORKER_KINDS = frozenset(
    {wire.READY, wire.CLAIMED, wire.PROGRESS, wire.CHECKPOINT, wire.CHECKPOINT_FAILED}
    | {wire.CHECKPOINT_SKIPPED, wire.ROLLED_BACK, wire.RELEASED, wire.PLAN, wire.WARNING}
    | {wire.RESULTS}
)

SAVER = -1  # the rank that the saver gives as its own, and whoever else trains nothing
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

    def on_step(self, rank: int, step: int) -> None:
        """A training process tells how many steps it has done."""
        ...

    def on_saver_wanted(self, argv: Sequence[str]) -> None:
        """A training process asks for a saver beside it, to be started like this."""
        ...

    def on_nonsense(self, text: str) -> None:
        """A line that means nothing."""
        ...

    def on_hang_up(self, rank: int) -> None:
        """A training process says nothing more: `connected` is one less. -1: it said no rank."""
        ...


class WorkerLink:
    """Shows every connected process the current flag, at once and at every change."""

    def __init__(
        self, path: Path, flag_of: Callable[[], Mapping[str, Any]], listener: WorkerListener
    ) -> None:
        self._flag_of = flag_of
        self._listener = listener
        self._lines: dict[Connection, bool] = {}  # and whether it trains
        self._lock = threading.Lock()
        self._socket = Listener(path, self._serve)

    @property
    def connected(self) -> int:
        """How many training processes listen."""
        with self._lock:
            return sum(self._lines.values())

    @property
    def open(self) -> int:
        """How many may still say something: those, and the saver."""
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
        hello = self._greeted(line.read_line())
        if hello is None:
            return
        rank = hello.get("rank")
        with self._lock:
            self._lines[line] = rank != SAVER
        try:
            # After it is known to `publish`, so that no change falls between the two.
            line.send(self._flag())
            while text := line.read_line():
                self._hear(text)
        finally:
            with self._lock:
                self._lines.pop(line, None)
            self._listener.on_hang_up(rank if _is_count(rank) else -1)

    def _greeted(self, text: bytes) -> dict[str, Any] | None:
        """Who it is; None for nobody."""
        hello = _parse(text).get("hello")
        if isinstance(hello, dict):
            return hello
        if text:
            self._listener.on_nonsense(f"no hello but {text[:100]!r}")
        return None

    def _hear(self, text: bytes) -> None:
        message = _parse(text)
        kind, data, leaving = message.get("kind"), message.get("data"), message.get("exit")
        busy_s, at, saver = message.get("busy_s"), message.get("at"), message.get("saver")
        if isinstance(kind, str) and kind in WORKER_KINDS and isinstance(data, dict):
            self._listener.on_fact(kind, data)
        elif isinstance(leaving, dict):
            rank, code = leaving.get("rank"), leaving.get("code")
            if isinstance(rank, int) and isinstance(code, int):
                self._listener.on_worker_exit(rank, code)
        elif isinstance(saver, dict) and _is_argv(saver.get("argv")):
            self._listener.on_saver_wanted(saver["argv"])
        elif _is_time(busy_s):
            self._listener.on_busy(float(busy_s))
        elif isinstance(at, dict):
            rank, step = at.get("rank"), at.get("step")
            if _is_count(rank) and _is_count(step):
                self._listener.on_step(rank, step)
        else:
            self._listener.on_nonsense(f"not a message: {text[:100]!r}")


def _is_time(value: Any) -> TypeGuard[int | float]:
    """Whether these are seconds: JSON has numbers that no float holds, Python's also NaN."""
    return isinstance(value, int | float) and -MAX_BUSY_S <= value <= MAX_BUSY_S


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value <= wire.MAX_NUMBER


def _is_argv(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
