"""A unix socket server for JSON lines, with one thread per connection."""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotd.wire import MAX_LINE_BYTES

_LOG = logging.getLogger(__name__)
_SEND_TIMEOUT = struct.pack("ll", 2, 0)  # seconds, microseconds


class Connection:
    """One peer. `send` is thread-safe and drops a peer that does not read."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._send_lock = threading.Lock()
        self._buffer = b""

    def send(self, line: bytes) -> bool:
        """Send a line. Returns False if the peer is gone, or was disconnected because it did not
        read."""
        with self._send_lock:
            try:
                self._socket.sendall(line)
            except OSError:
                self.disconnect()
                return False
        return True

    def read_line(self) -> bytes:
        """Return the next line with its newline, or b"" at the end or for a line that is too
        long."""
        while b"\n" not in self._buffer:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                return b""
            if not data or len(self._buffer) > MAX_LINE_BYTES:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line + b"\n"

    def disconnect(self) -> None:
        """End the connection; the thread that reads from it sees the end."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already gone


class Listener:
    """Accepts connections on `path` and runs `serve(connection)` in a thread for each, until
    closed."""

    def __init__(self, path: Path, serve: Callable[[Connection], None]) -> None:
        self._serve = serve
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._accept, name=path.stem, daemon=True)
        self._thread.start()

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        finally:
            self._socket.close()
        with self._lock:
            for connection in self._connections:
                connection.disconnect()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return  # closed
            # A send that takes longer has a dead peer. Reads may wait forever.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
            threading.Thread(target=self._run, args=(peer,), daemon=True).start()

    def _run(self, peer: socket.socket) -> None:
        connection = Connection(peer)
        with self._lock:
            self._connections.add(connection)
        try:
            self._serve(connection)
        except Exception:  # noqa: BLE001 - one peer's failure must not end the agent
            _LOG.exception("a connection failed")
        finally:
            with self._lock:
                self._connections.discard(connection)
            peer.close()


def parse_object(line: bytes) -> dict[str, Any]:
    """Parse a line that is a JSON object; {} for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
