"""A web server in a thread: its start, its listener and its end."""

from __future__ import annotations

import socket
import threading

import pytest
import uvicorn

from spotd.base.server_thread import ServerThread, listen_tcp


async def _app(_scope: object, _receive: object, _send: object) -> None:
    raise RuntimeError


def test_a_server_that_does_not_end_in_time_keeps_its_socket() -> None:
    """On a busy machine; without its socket it printed a traceback."""
    release = threading.Event()
    with socket.socket() as listener:
        running = ServerThread(uvicorn.Config(_app), listener, "test")
        running.thread = threading.Thread(target=release.wait)
        running.thread.start()
        running.stop(timeout_s=0.01)
        assert running.server.should_exit
        assert listener.fileno() >= 0
        release.set()
        running.stop()
        assert listener.fileno() == -1


def test_a_server_whose_thread_ends_does_not_start_and_closes_its_socket() -> None:
    listener = listen_tcp("127.0.0.1", 0, backlog=1)
    running = ServerThread(uvicorn.Config(_app), listener, "test")
    running.thread = threading.Thread(target=lambda: None)
    assert not running.start()
    assert listener.fileno() == -1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_that_is_taken_is_refused_and_its_socket_closed(host: str) -> None:
    made: list[socket.socket] = []

    def make(family: int) -> socket.socket:
        made.append(socket.socket(family, socket.SOCK_STREAM))
        return made[-1]

    with listen_tcp(host, 0, backlog=1) as first:
        with pytest.raises(OSError, match="in use"):
            listen_tcp(host, first.getsockname()[1], backlog=1, make=make)
        assert made[0].fileno() == -1
