"""End a web server that runs in a thread of this process."""

from __future__ import annotations

import socket
import threading

import uvicorn


def stop_server(
    server: uvicorn.Server,
    *,
    thread: threading.Thread,
    listener: socket.socket,
    timeout_s: float = 5.0,
) -> None:
    """Stop listening, give requests in flight a second, and join the thread.

    A server that does not end in time keeps its socket: without it, it would fail with a traceback.
    """
    server.should_exit = True
    thread.join(timeout_s)
    if not thread.is_alive():
        listener.close()
