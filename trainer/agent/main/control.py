"""The agent's control socket: commands in, heartbeats out to followers.

A connection sends one line: a command (wire.py), which gets one reply; `{"watch": {"after": N}}`,
which gets a line per heartbeat and journal entry until it is closed; `{"wake": {}}`; or the
daemon's `here`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from spotd.wire import (
    Command,
    DaemonPresence,
    Reply,
    WireError,
    encode,
    parse_command,
    parse_presence,
    parse_reply,
)
from trainer.agent.base.sockets import Connection, Listener, parse_object


class Control:
    """The agent's end. `command` may take long; it runs in the connection's thread."""

    def __init__(
        self,
        path: Path,
        *,
        command: Callable[[Command], Reply],
        watched_after: Callable[[int], None],
        wake: Callable[[], None],
        on_presence: Callable[[DaemonPresence], None],
    ) -> None:
        self._command = command
        self._watched_after = watched_after
        self._wake = wake
        self._on_presence = on_presence
        self._watchers: set[Connection] = set()
        self._lock = threading.Lock()
        self._socket = Listener(path, self._serve)

    def beat(self, data: Mapping[str, Any]) -> None:
        """Send a heartbeat to the followers."""
        self._broadcast(encode({"beat": dict(data)}))

    def poke(self, seq: int) -> None:
        """Tell the followers that the journal has grown."""
        self._broadcast(encode({"poke": {"seq": seq}}))

    def close(self) -> None:
        self._socket.close()

    def _broadcast(self, line: bytes) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.send(line)

    def _serve(self, connection: Connection) -> None:
        line = connection.read_line()
        if not line:
            return
        request = parse_object(line)
        if "wake" in request:
            self._wake()
        elif "here" in request:
            with suppress(WireError):
                self._on_presence(parse_presence(line))
        elif "watch" in request:
            self._watch(connection, request["watch"])
        else:
            connection.send(self._reply(line).to_line())

    def _reply(self, line: bytes) -> Reply:
        try:
            return self._command(parse_command(line))
        except WireError as error:
            return Reply(False, f"the command is not understood: {error}")

    def _watch(self, connection: Connection, request: Any) -> None:
        after = request.get("after") if isinstance(request, dict) else None
        if isinstance(after, int):
            self._watched_after(after)
        with self._lock:
            self._watchers.add(connection)
        try:
            connection.read_line()  # the peer sends nothing more: this waits for its end
        finally:
            with self._lock:
                self._watchers.discard(connection)


def send_command(path: Path, line: bytes, timeout_s: float) -> Reply:
    """Send a command to the agent at `path`.

    Raises OSError if there is no agent, WireError if it sends no valid reply.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(line)
        answer = b""
        while not answer.endswith(b"\n"):
            data = connection.recv(1 << 16)
            if not data:
                raise WireError("the agent ended before it answered; try again")
            answer += data
    return parse_reply(answer)
