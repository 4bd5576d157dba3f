"""End of a web server in a thread."""

from __future__ import annotations

import socket
import threading

import uvicorn

from spotd.base.server_thread import stop_server


def test_a_server_that_does_not_end_in_time_keeps_its_socket() -> None:
    """On a busy machine; without its socket it printed a traceback."""
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    with socket.socket() as listener:
        stop_server(server, thread=thread, listener=listener, timeout_s=0.01)
        assert server.should_exit
        assert listener.fileno() >= 0
        release.set()
        stop_server(server, thread=thread, listener=listener)
        assert listener.fileno() == -1
