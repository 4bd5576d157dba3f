"""The agent's end of the connections to the training processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from spotd import wire
from trainer.agent.base.sockets import Connection, Listener, parse_object

# Entries that a training process may write to the journal; the others are the agent's.
WORKER_KINDS = frozenset(
    {wire.READY, wire.CLAIMED, wire.PROGRESS, wire.CHECKPOINT, wire.CHECKPOINT_FAILED}
    | {wire.CHECKPOINT_SKIPPED, wire.ROLLED_BACK, wire.RELEASED, wire.PLAN, wire.WARNING}
    | {wire.RESULTS}
)

SAVER = -1  # the rank of processes that do not train, such as the saver
MAX_BUSY_S = 10 * 365 * 86_400.0  # longer than any program runs


class WorkerListener(Protocol):
    """Receives the messages of training processes; called from their connections' threads."""

    def on_fact(self, kind: str, data: Mapping[str, Any]) -> None:
        """A journal entry; the kind has been checked."""
        ...

    def on_worker_exit(self, rank: int, code: int) -> None:
        """A training process is about to end with this code."""
        ...

    def on_busy(self, for_s: float) -> None:
        """A training process is alive, and may be silent for `for_s` seconds."""
        ...

    def on_idle(self, rank: int) -> None:
        """A training process has ended its training; its program may go on, or train again."""
        ...

    def on_step(self, rank: int, step: int) -> None:
        """A training process has done this many steps."""
        ...

    def on_saver_request(self, argv: Sequence[str]) -> None:
        """A training process requests a saver, to be started with this command."""
        ...

    def on_invalid_message(self, text: str) -> None:
        """A line could not be parsed."""
        ...

    def on_disconnect(self, rank: int) -> None:
        """A connection was closed; `connected` is lower now. The rank is -1 if none was sent."""
        ...


class WorkerLink:
    """Sends the current flag to every connected process, at once and at every change."""

    def __init__(
        self, path: Path, flag_of: Callable[[], Mapping[str, Any]], listener: WorkerListener
    ) -> None:
        self._flag_of = flag_of
        self._listener = listener
        self._connections: dict[Connection, bool] = {}  # value: whether the process trains
        self._lock = threading.Lock()
        self._socket = Listener(path, self._serve)

    @property
    def connected(self) -> int:
        """How many training processes are connected."""
        with self._lock:
            return sum(self._connections.values())

    @property
    def open_count(self) -> int:
        """How many connections can still send something: training processes and the saver."""
        with self._lock:
            return len(self._connections)

    def publish(self) -> None:
        """Send the flag after a change."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.send(self._flag())

    def close(self) -> None:
        self._socket.close()

    def _flag(self) -> bytes:
        return wire.encode({"flag": dict(self._flag_of())})

    def _serve(self, connection: Connection) -> None:
        hello = self._parse_hello(connection.read_line())
        if hello is None:
            return
        rank = hello.get("rank")
        with self._lock:
            self._connections[connection] = rank != SAVER
        try:
            # After `publish` knows the connection, so that no change is missed.
            connection.send(self._flag())
            while text := connection.read_line():
                self._dispatch(text)
        finally:
            with self._lock:
                self._connections.pop(connection, None)
            self._listener.on_disconnect(rank if _is_count(rank) else -1)

    def _parse_hello(self, text: bytes) -> dict[str, Any] | None:
        """Return the first message of a connection, or None if it is not a hello."""
        hello = parse_object(text).get("hello")
        if isinstance(hello, dict):
            return hello
        if text:
            self._listener.on_invalid_message(f"expected a hello, received {text[:100]!r}")
        return None

    def _dispatch(self, text: bytes) -> None:
        message = parse_object(text)
        kind, data, exiting = message.get("kind"), message.get("data"), message.get("exit")
        busy_s, at, saver = message.get("busy_s"), message.get("at"), message.get("saver")
        if isinstance(kind, str) and kind in WORKER_KINDS and isinstance(data, dict):
            self._listener.on_fact(kind, data)
        elif isinstance(exiting, dict):
            rank, code = exiting.get("rank"), exiting.get("code")
            if isinstance(rank, int) and isinstance(code, int):
                self._listener.on_worker_exit(rank, code)
        elif isinstance(saver, dict) and _is_argv(saver.get("argv")):
            self._listener.on_saver_request(saver["argv"])
        elif _is_time(busy_s):
            self._listener.on_busy(float(busy_s))
        elif isinstance(idle := message.get("idle"), dict):
            if _is_count(rank := idle.get("rank")):
                self._listener.on_idle(rank)
        elif isinstance(at, dict):
            rank, step = at.get("rank"), at.get("step")
            if _is_count(rank) and _is_count(step):
                self._listener.on_step(rank, step)
        else:
            self._listener.on_invalid_message(f"not a message: {text[:100]!r}")


def _is_time(value: Any) -> TypeGuard[int | float]:
    """Whether this is a number of seconds: JSON has numbers too large for a float, and Python's has
    NaN."""
    return isinstance(value, int | float) and -MAX_BUSY_S <= value <= MAX_BUSY_S


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value <= wire.MAX_NUMBER


def _is_argv(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
