"""A request to a slow peer fails in time, however the peer is slow."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from providers.aws.notice import Watcher
from providers.base import MetadataError
from providers.http_request import send_request

ANSWER = b"HTTP/1.1 200 OK\r\nX-Told: yes\r\nContent-Length: 5\r\n\r\nhello"
TIMEOUT_S = 0.5
Answer = Callable[[socket.socket, threading.Event], object]


@contextmanager
def served(answer: Answer) -> Iterator[tuple[str, int]]:
    """A server that answers one client after another, each in a given way, until an event."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    try:
                        answer(peer, over)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def dripping(data: bytes) -> Answer:
    """Byte after byte, for as long as anybody reads."""

    def answer(peer: socket.socket, over: threading.Event) -> None:
        for byte in itertools.cycle(data):
            peer.sendall(bytes([byte]))
            if over.wait(0.05):
                return

    return answer


def test_an_answer() -> None:
    with served(lambda peer, _: (peer.recv(4096), peer.sendall(ANSWER))) as address:
        received = send_request(
            address, "GET", "/", timeout_s=5, limit_bytes=99, headers={"A": "b"}
        )
    assert (received.status, received.headers["X-Told"], received.body) == (200, "yes", b"hello")


def test_a_body_is_cut_at_the_limit() -> None:
    with served(lambda peer, _: (peer.recv(4096), peer.sendall(ANSWER))) as address:
        received = send_request(address, "GET", "/", timeout_s=5, limit_bytes=2, headers={})
    assert received.body == b"he"


@pytest.mark.parametrize(
    "answer",
    [
        dripping(b"HTTP/1.1 200 OK\r\n"),
        dripping(b"A"),
        lambda peer, over: (
            peer.sendall(ANSWER.replace(b": 5", b": 99999")),
            dripping(b" ")(peer, over),
        ),
        lambda _, over: over.wait(),
    ],
    ids=["headers", "one line", "body", "nothing"],
)
def test_a_peer_that_drips_is_not_waited_for(answer: Answer) -> None:
    with served(answer) as address, pytest.raises(OSError, match="timed out"):
        send_request(address, "GET", "/", timeout_s=TIMEOUT_S, limit_bytes=99999, headers={})


def test_a_metadata_service_that_drips_is_an_outage() -> None:
    """The thread that would receive a preemption must not hang on it."""
    with (
        served(dripping(b"HTTP/1.1 200 OK\r\n")) as (host, port),
        pytest.raises(MetadataError, match="timed out"),
    ):
        Watcher(f"http://{host}:{port}", timeout_s=TIMEOUT_S).poll()
