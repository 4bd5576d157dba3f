"""A narrow line to an HTTP server on this machine, so that an upload of little takes as long as one
of much does elsewhere.

Large bodies go through one after the other, all of them together at so many bytes a second: how far
an upload of a few dozen parts has come is then as plain as with thousands of them, of which as many
are on their way. What is small, and every answer, goes through at once."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

SMALL_BYTES = 1 << 20
AT_ONCE = 1 << 18
CREDIT_S = 0.5  # what a busy machine lets pass between two bodies, and no more, is made good
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Line:
    """`rate` bytes a second; 0: no limit."""

    def __init__(self, host: str, port: int, rate: float) -> None:
        self._far, self._rate = (host, port), rate
        self._turn, self._free_at = threading.Lock(), 0.0

    def serve(self, listener: socket.socket) -> None:
        """Every connection on threads of its own, until the listener is closed."""
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(self._far) as far:
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_answer, args=(far, near), daemon=True).start()
            self._ask(near, far)

    def _ask(self, near: socket.socket, far: socket.socket) -> None:
        """Request after request, until the client has no more."""
        heard = b""
        while True:
            while b"\r\n\r\n" not in heard:
                if not (more := near.recv(65536)):
                    return
                heard += more
            head, _, rest = heard.partition(b"\r\n\r\n")
            found = _LENGTH.search(head)
            size = int(found[1]) if found else 0
            far.sendall(head + b"\r\n\r\n")
            body, heard = rest[:size], rest[size:]
            if size < SMALL_BYTES or not self._rate:
                _pass_on(near, far, body, size)
                continue
            with self._turn:
                if (now := time.monotonic()) - self._free_at > CREDIT_S:
                    self._free_at = now
                _pass_on(near, far, body, size, self._await)

    def _await(self, count: int) -> None:
        self._free_at += count / self._rate
        time.sleep(max(self._free_at - time.monotonic(), 0.0))


def _pass_on(
    near: socket.socket,
    far: socket.socket,
    body: bytes,
    size: int,
    wait: Callable[[int], None] = lambda _: None,
) -> None:
    """A body of `size` bytes, of which the first were read. Raises OSError where it ends before."""
    left = size - len(body)
    while True:
        wait(len(body))
        far.sendall(body)
        if not left:
            return
        if not (body := near.recv(min(left, AT_ONCE))):
            raise ConnectionResetError("the body is cut off")
        left -= len(body)


def _answer(far: socket.socket, near: socket.socket) -> None:
    with suppress(OSError):
        while data := far.recv(AT_ONCE):
            near.sendall(data)
        near.shutdown(socket.SHUT_RDWR)


@contextmanager
def narrowed(url: str, rate: float) -> Iterator[str]:
    """Another address of the server at `url`, by a line of `rate` bytes a second (0: no limit)."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    line = Line(parts.hostname, parts.port, rate)
    threading.Thread(target=line.serve, args=(listener,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
