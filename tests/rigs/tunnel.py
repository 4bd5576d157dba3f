"""A proxy that leads every host of https to one server: who is told of it by HTTPS_PROXY asks for a
cloud's own name, and is answered here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from socketserver import StreamRequestHandler, ThreadingTCPServer


@dataclass
class Tunnel:
    """Where it is; `asked` are the hosts, with their ports."""

    url: str
    asked: list[str] = field(default_factory=list)


class _Server(ThreadingTCPServer):
    daemon_threads = True
    target: tuple[str, int]
    made: Tunnel


class _Handler(StreamRequestHandler):
    server: _Server
    rbufsize = 0

    def handle(self) -> None:
        line = self.rfile.readline().split()
        while self.rfile.readline().strip():
            pass
        if line[0] != b"CONNECT":
            self.wfile.write(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
            return
        self.server.made.asked.append(line[1].decode())
        with socket.create_connection(self.server.target) as onward:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pass, args=(onward, self.connection), daemon=True)
            back.start()
            _pass(self.connection, onward)
            back.join()


def _pass(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


@contextmanager
def leading_to(host: str, port: int) -> Iterator[Tunnel]:
    """One for the length of the block."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.target = (host, port)
        server.made = Tunnel(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.made
        finally:
            server.shutdown()
            thread.join()
