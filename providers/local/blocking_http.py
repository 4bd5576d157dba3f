"""A loopback HTTP server that blocks in `accept` instead of polling, so that many are cheap."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class BlockingServer(ThreadingHTTPServer):
    """Serves each connection on a daemon thread. `bound` is a bound socket, listening or not."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, bound: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        address: tuple[str, int] = bound.getsockname()
        super().__init__(address, handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.url = f"http://{address[0]}:{address[1]}"
        self._accepting = threading.Thread(target=self._accept, name=self.url, daemon=True)

    def start(self) -> None:
        self.server_activate()
        self._accepting.start()

    def stop(self) -> None:
        """Accept no more connections. Open ones end with the process."""
        self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._accepting.join()
        self.server_close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self.socket.accept()
            except OSError:
                return  # the socket was shut down
            self.process_request(connection, address)


class BlockingHandler(BaseHTTPRequestHandler):
    """Keeps connections alive, sends each response as one packet, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send a complete response."""
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """No access log: the ledger and the control API record what happened."""


def bind(host: str, port: int = 0) -> socket.socket:
    """Bind a TCP socket; port 0 picks a free one. Raises OSError if the port is taken."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
