"""A web server that runs in a thread of this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn


def server_config(app: Any, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration of `app` with what all servers here have in common.

    Each logs as spotd does and no requests, believes no proxy, and gives requests a second to end.
    """
    return uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        **options,
    )


def plain_socket(family: int) -> socket.socket:
    """Return a TCP socket of that address family."""
    return socket.socket(family, socket.SOCK_STREAM)


def listen_tcp(
    host: str,
    port: int,
    *,
    backlog: int,
    make: Callable[[int], socket.socket] = plain_socket,
) -> socket.socket:
    """Return a socket that listens at an address of IPv4 or IPv6; port 0 picks one.

    `make` gets the address family. Raises OSError.
    """
    listener = make(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


class ServerThread:
    """A server of `config` on `listener`, which it closes at its end."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, name: str) -> None:
        self.server, self.listener = uvicorn.Server(config), listener
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [listener]}, name=name, daemon=True
        )

    def start(self, timeout_s: float = 10.0) -> bool:
        """Return whether it serves within `timeout_s`; otherwise it is stopped."""
        self.thread.start()
        deadline_s = time.monotonic() + timeout_s
        while not self.server.started:
            if not self.thread.is_alive() or time.monotonic() > deadline_s:
                self.stop()
                return False
            time.sleep(0.002)
        return True

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop listening, give requests in flight a second, and join the thread.

        A server that does not end in time keeps its socket: without it, it would fail with a
        traceback.
        """
        self.server.should_exit = True
        self.thread.join(timeout_s)
        if not self.thread.is_alive():
            self.listener.close()
