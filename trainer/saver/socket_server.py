"""The saver's door: a unix socket on which the machine's training processes ask for memory, say
what they stage, and fetch what they resume from. JSON lines, one answer each; the memory's file
descriptor travels beside the answer to `join`.

    {"join": {"rank", "ranks", "world_size", "size", "slots", "pieces"}}  -> {} and the memory
    {"hello": {}}                                   -> {}
    {"claim": {"claim", "left_s", "wait_s"}}        -> {"waiting"}, or with HEAD ours {"final"}
    {"resume": {"config", "back", "most_step"}}     -> {"found": {"ref", "state", ...} or null}
    {"skip": {"why", "config"}}                     -> the one before, as of "resume"
    {"fetch": {"ranges": [[stream, start, size]]}}  -> {"slot", "from": bytes by source}
    {"resumed": {}}                                 -> {}; commits follow what was found
    {"begin": {a label}}                            -> {"slot"}; -1: none is free
    {"drain": {"timeout_s", "alone"}}               -> {"drained"}
    {"release": {}}                                 -> {"step", "manifest"}

Where a request cannot be served the answer is {"error": {"kind", "text"}}.
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
MOST_BYTES = 64 << 20  # of a line: 100,000 tensors are described in 20 MB


class Session(Protocol):
    """Serves one process."""

    def answer(self, request: str, data: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        """The answer, and a file descriptor to go with it or -1. What it raises is the answer."""
        ...

    def hang_up(self) -> None:
        """The process is gone."""
        ...


class SocketServer:
    """Accepts on `path` until closed; each process has a desk of its own, and a thread."""

    def __init__(self, path: Path, open_desk: Callable[[], Session]) -> None:
        self._open_desk = open_desk
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(64)
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def close(self) -> None:
        """Nobody new comes in."""
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
        desk, rest = self._open_desk(), b""
        with peer:
            try:
                while True:
                    line, rest = _line(peer, rest)
                    if not line:
                        return
                    answer, fd = _answer(desk, line)
                    _send(peer, answer, fd)
            except OSError:
                return  # it is gone
            finally:
                desk.hang_up()


def _answer(desk: Session, line: bytes) -> tuple[Mapping[str, Any], int]:
    try:
        ((request, data),) = json.loads(line).items()
        return desk.answer(request, data)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told to who asked
        _LOG.info("%s: %s", line[:200], error, exc_info=True)
        return {"error": {"kind": type(error).__name__, "text": str(error)}}, -1


def _line(peer: socket.socket, rest: bytes) -> tuple[bytes, bytes]:
    """The next line and what came behind it; b"" at the end."""
    parts = [rest]
    while b"\n" not in parts[-1]:
        data = peer.recv(1 << 16)
        if not data or sum(map(len, parts)) > MOST_BYTES:
            return b"", b""
        parts.append(data)
    line, _, rest = b"".join(parts).partition(b"\n")
    return line, rest


def _send(peer: socket.socket, answer: Mapping[str, Any], fd: int) -> None:
    line = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
    beside = []
    if fd >= 0:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sent = peer.sendmsg([line], beside)
    peer.sendall(line[sent:])
