"""The saver's unix socket, on which training processes stage snapshots and fetch checkpoints.

Requests and replies are JSON lines, one reply to each request. The file descriptor of the shared
memory travels with the reply to `join`.

    {"join": {"rank", "ranks", "world_size", "size", "slots", "pieces"}}  -> {} and the memory
    {"hello": {}}                                   -> {}
    {"claim": {"claim", "left_s", "wait_s"}}        -> {"waiting"}, or if claimed {"final"}
    {"resume": {"config", "back", "most_step"}}     -> {"found": {"ref", "state", ...} or null}
    {"skip": {"why", "config"}}                     -> the one before, as for "resume"
    {"fetch": {"ranges": [[stream, start, size]]}}  -> {"slot", "from": bytes by source}
    {"resumed": {}}                                 -> {}; commits follow the found checkpoint
    {"begin": {a label}}                            -> {"slot"}; -1: none is free
    {"drain": {"timeout_s", "alone"}}               -> {"drained", "ref": of HEAD's checkpoint}
    {"release": {}}                                 -> {"step", "manifest"}
    {"finish": {}}                                  -> {"finished"}: whether the job is done

A failed request is answered with {"error": {"kind", "text"}}.
"""

from __future__ import annotations

import array
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

_LOG = logging.getLogger(__name__)
MAX_LINE_BYTES = 64 << 20  # the description of 100,000 tensors has 20 MB


class Session(Protocol):
    """Serves one training process."""

    def handle(self, request: str, data: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        """Return the reply and a file descriptor to send with it, or -1. Errors become replies."""
        ...

    def disconnected(self) -> None:
        """Handle the end of the connection."""
        ...


class SocketServer:
    """Accepts connections on `path`; each has its own session and thread."""

    def __init__(self, path: Path, open_session: Callable[[], Session]) -> None:
        self._open_desk = open_session
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(64)
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def close(self) -> None:
        """Accept no new connections."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        session, rest = self._open_desk(), b""
        with peer:
            try:
                while True:
                    line, rest = _read_line(peer, rest)
                    if not line:
                        return
                    answer, fd = _handle(session, line)
                    _send(peer, answer, fd)
            except OSError:
                return  # the client is gone
            finally:
                session.disconnected()


def _handle(session: Session, line: bytes) -> tuple[Mapping[str, Any], int]:
    try:
        ((request, data),) = json.loads(line).items()
        return session.handle(request, data)
    except Exception as error:  # noqa: BLE001 - every error becomes the reply
        _LOG.info("%s: %s", line[:200], error, exc_info=True)
        return {"error": {"kind": type(error).__name__, "text": str(error)}}, -1


def _read_line(peer: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
    """Return the next line and the bytes after it; (b"", b"") at the end."""
    parts = [rest]
    while b"\n" not in parts[-1]:
        data = peer.recv(1 << 16)
        if not data or sum(map(len, parts)) > MAX_LINE_BYTES:
            return b"", b""
        parts.append(data)
    line, _, rest = b"".join(parts).partition(b"\n")
    return line, rest


def _send(peer: socket.socket, answer: Mapping[str, Any], fd: int) -> None:
    line = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
    ancillary = []
    if fd >= 0:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sent = peer.sendmsg([line], ancillary)
    peer.sendall(line[sent:])
