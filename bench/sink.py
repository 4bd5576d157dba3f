"""An S3 endpoint that takes every upload and throws it away, so that what an upload costs is the
client's: `python -m bench.sink [CERTIFICATE KEY]` says its port and serves until its standard input
ends, over TLS with a certificate. It keeps what is small (HEAD, manifests), with the conditions of
its writes, so that a saver can commit into it; there is nothing to be read back of the rest."""

from __future__ import annotations

import hashlib
import os
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
KEPT_BYTES = 1 << 20  # what is larger is thrown away
NICE = 10  # as the saver: whoever takes an upload is part of it, on this machine alone
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CONDITION = re.compile(rb"\r\n(if-match|if-none-match): *(\S+)", re.IGNORECASE)
_BEGUN = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
_DONE = b'<CompleteMultipartUploadResult><ETag>"e"</ETag></CompleteMultipartUploadResult>'
_NONE = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
_OK, _NOT_FOUND, _CONFLICT = b"200 OK", b"404 Not Found", b"412 Precondition Failed"
_DATE = b"Tue, 24 Nov 2026 00:00:00 GMT"  # of all: nobody asks how old something is


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


class Kept:
    """The small objects, by path."""

    def __init__(self) -> None:
        self._objects: dict[bytes, bytes] = {}
        self._lock = threading.Lock()

    def reply(self, head: bytes, body: bytes | None) -> tuple[bytes, bytes, bytes]:
        """Status, tag and body for a request; its own body is None where that was thrown away."""
        method, target, _ = head.split(b" ", 2)
        path, _, query = target.partition(b"?")
        with self._lock:
            found = self._objects.get(path)
            if method == b"PUT":
                part = None if query else body  # of an upload in parts, none is kept
                return self._put(path, found, _CONDITION.search(head), part)
            if method == b"POST":
                return _OK, b"e", _BEGUN if b"uploads" in query else _DONE
            if method == b"DELETE":
                self._objects.pop(path, None)
                return b"204 No Content", b"", b""
        if b"list-type" in query:
            return _OK, b"", _NONE
        if found is None:
            return _NOT_FOUND, b"", b"<Error><Code>NoSuchKey</Code></Error>"
        return _OK, _tag(found), found

    def _put(
        self, path: bytes, found: bytes | None, wanted: re.Match[bytes] | None, body: bytes | None
    ) -> tuple[bytes, bytes, bytes]:
        if wanted is not None:
            tag = wanted[2].strip(b'"')
            fresh = wanted[1].lower() == b"if-none-match"
            if (found is not None) if fresh else (found is None or _tag(found) != tag):
                return _CONFLICT, b"", b"<Error><Code>PreconditionFailed</Code></Error>"
        if body is None:
            return _OK, b"e", b""
        self._objects[path] = body
        return _OK, _tag(body), b""


def _tag(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest()[:32].encode()


def answer(line: socket.socket, memory: memoryview, kept: Kept) -> None:
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
        size = int(found[1]) if found else 0
        body, heard = rest[:size], rest[size:]
        left = size - len(body)
        while left:
            count = line.recv_into(memory, min(left, len(memory)))
            if not count:
                return
            left -= count
            if size < KEPT_BYTES:
                body += memory[:count]
        status, tag, said = kept.reply(head, body if size < KEPT_BYTES else None)
        told = [b"HTTP/1.1 " + status, b"Last-Modified: " + _DATE]
        told += [b'ETag: "%s"' % tag] if tag else []
        line.sendall(b"\r\n".join([*told, b"Content-Length: %d" % len(said), b"", b""]))
        if not head.startswith(b"HEAD"):
            line.sendall(said)


def serve(server: socket.socket, context: ssl.SSLContext | None) -> None:
    """Every connection on a thread of its own, for ever."""
    kept = Kept()

    def talk(line: socket.socket) -> None:
        with suppress(OSError):
            talking = context.wrap_socket(line, server_side=True) if context else line
            with talking:
                answer(talking, memoryview(bytearray(BUFFER_BYTES)), kept)

    while True:
        line, _ = server.accept()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=talk, args=(line,), daemon=True).start()


def main() -> None:
    os.nice(NICE)
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
