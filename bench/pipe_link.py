"""A node link without SSH: the same commands, through the unix socket of a simulated fleet."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable

from spotd.act.bundle import Bundle
from spotd.act.link import SshLink
from spotd.act.remote_exec import MAX_OUTPUT, Result
from spotd.act.ssh import SshUnreachableError
from spotd.domain.node import Node
from spotd.security.secrets import JobKeys

READ_BYTES = 64 << 10


class PipeLink(SshLink):
    """An SshLink that connects to `path` instead of to the node."""

    def __init__(self, path: str, bundle: Bundle) -> None:
        super().__init__(bundle)
        self._path = path

    def connect(  # type: ignore[override]
        self, node: Node, keys: JobKeys, deadline_s: float = threading.TIMEOUT_MAX
    ) -> PipeConnection:
        del keys, deadline_s  # the fleet answers at once
        return PipeConnection(self._path, node.address.port)


class PipeConnection:
    """What act.ssh.Connection is to its users. Raises SshUnreachableError."""

    def __init__(self, path: str, port: int) -> None:
        self._port = port
        self._line = socket.socket(socket.AF_UNIX)
        self._line.settimeout(30)
        try:
            self._line.connect(path)
        except OSError as error:
            self._line.close()
            raise SshUnreachableError(str(error)) from None

    def close(self) -> None:
        self._line.close()

    def hang_up(self, channel: PipeChannel) -> None:
        """Close both."""
        self.close()
        channel.close()

    def run(
        self,
        command: str,
        stdin: Iterable[bytes] = (),
        deadline_s: float = 30.0,
        max_output: int = MAX_OUTPUT,
    ) -> Result:
        """Run a command to its end."""
        del deadline_s, max_output
        try:
            self._line.sendall(_request(self._port, command, b"".join(stdin)))
            answer = b""
            while data := self._line.recv(READ_BYTES):
                answer += data
        except OSError as error:
            raise SshUnreachableError(str(error)) from None
        return Result(0, answer, b"")

    def open_channel(
        self, command: str, deadline_s: float, window_bytes: int | None = None
    ) -> PipeChannel:
        """A channel on which the command speaks."""
        del deadline_s, window_bytes
        return PipeChannel(self._line, self._port, command)


class PipeChannel:
    """What a paramiko channel is to the follower. The command goes out with its stdin."""

    exit_status = -1

    def __init__(self, line: socket.socket, port: int, command: str) -> None:
        self._line = line
        self._port = port
        self._command = command
        self._data = b""
        self.closed = False
        self.eof_received = False

    def settimeout(self, seconds: float) -> None:
        self._line.settimeout(seconds)

    def setblocking(self, blocking: int) -> None:
        self._line.setblocking(bool(blocking))

    def fileno(self) -> int:
        return self._line.fileno()

    def sendall(self, stdin: bytes) -> None:
        self._line.sendall(_request(self._port, self._command, stdin))

    def recv_ready(self) -> bool:
        if not self._data and not self.eof_received:
            try:
                self._data = self._line.recv(READ_BYTES)
            except BlockingIOError:
                return False
            self.eof_received = not self._data
        return bool(self._data)

    def recv(self, size: int) -> bytes:
        found, self._data = self._data[:size], self._data[size:]
        return found

    def recv_stderr_ready(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def _request(port: int, command: str, stdin: bytes) -> bytes:
    asked = {"port": port, "command": command, "stdin_bytes": len(stdin)}
    return json.dumps(asked).encode() + b"\n" + stdin
