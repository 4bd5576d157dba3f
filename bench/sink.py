"""An S3 endpoint that takes every upload and keeps nothing, so that what an upload costs is the
client's: `python -m bench.sink [CERTIFICATE KEY]` says its port and serves until its standard input
ends, over TLS with a certificate."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BUFFER_BYTES = 1 << 20
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_BEGUN = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
_DONE = b'<CompleteMultipartUploadResult><ETag>"e"</ETag></CompleteMultipartUploadResult>'


@contextmanager
def serving(*tls: Path) -> Iterator[int]:
    """The port of one in a process of its own; `tls` is a certificate and its key, or nothing."""
    argv = [sys.executable, "-m", "bench.sink", *map(str, tls)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


def answer(line: socket.socket, memory: memoryview) -> None:
    """One connection, until the other side has no more to ask."""
    heard = b""
    while True:
        while b"\r\n\r\n" not in heard:
            if not (more := line.recv(65536)):
                return
            heard += more
        head, _, rest = heard.partition(b"\r\n\r\n")
        if b"100-continue" in head.lower():
            line.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        found = _LENGTH.search(head)
        left = int(found[1]) if found else 0
        heard, left = rest[left:], max(0, left - len(rest))
        while left:
            count = line.recv_into(memory, min(left, len(memory)))
            if not count:
                return
            left -= count
        body = b""
        if head.startswith(b"POST"):
            body = _BEGUN if b"uploads" in head.split(b" ", 2)[1] else _DONE
        line.sendall(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n' % len(body))
        line.sendall(body)


def serve(server: socket.socket, context: ssl.SSLContext | None) -> None:
    """Every connection on a thread of its own, for ever."""

    def talk(line: socket.socket) -> None:
        with suppress(OSError):
            talking = context.wrap_socket(line, server_side=True) if context else line
            with talking:
                answer(talking, memoryview(bytearray(BUFFER_BYTES)))

    while True:
        line, _ = server.accept()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=talk, args=(line,), daemon=True).start()


def main() -> None:
    context = None
    if sys.argv[1:]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*sys.argv[1:])
    server = socket.create_server(("127.0.0.1", 0), backlog=128)
    threading.Thread(target=serve, args=(server, context), daemon=True).start()
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
