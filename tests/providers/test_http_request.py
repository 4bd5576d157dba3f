"""A request to a slow peer fails in time, however the peer is slow."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from providers.aws.notice import Watcher
from providers.base import MetadataError
from providers.http_request import send_request

ANSWER = b"HTTP/1.1 200 OK\r\nX-Told: yes\r\nContent-Length: 5\r\n\r\nhello"
TIMEOUT_S = 0.5
LATE_S = 5.0  # only a peer that is waited for as long as it likes takes longer


@contextmanager
def served(answer: Callable[[socket.socket], object]) -> Iterator[tuple[str, int]]:
    """A server that answers one client after another, each in a given way."""
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
                        answer(peer)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()
        over.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def dripping(data: bytes) -> Callable[[socket.socket], None]:
    def answer(peer: socket.socket) -> None:
        for byte in data * 100:
            peer.sendall(bytes([byte]))
            time.sleep(0.05)

    return answer


def test_an_answer() -> None:
    with served(lambda peer: (peer.recv(4096), peer.sendall(ANSWER))) as address:
        received = send_request(
            address, "GET", "/", timeout_s=5, limit_bytes=99, headers={"A": "b"}
        )
    assert (received.status, received.headers["X-Told"], received.body) == (200, "yes", b"hello")


def test_a_body_is_cut_at_the_limit() -> None:
    with served(lambda peer: (peer.recv(4096), peer.sendall(ANSWER))) as address:
        received = send_request(address, "GET", "/", timeout_s=5, limit_bytes=2, headers={})
    assert received.body == b"he"


@pytest.mark.parametrize(
    "answer",
    [
        dripping(b"HTTP/1.1 200 OK\r\n"),
        dripping(b"A"),
        lambda peer: (peer.sendall(ANSWER.replace(b": 5", b": 99")), dripping(b" ")(peer)),
        lambda peer: time.sleep(TIMEOUT_S + 0.3),
    ],
    ids=["headers", "one line", "body", "nothing"],
)
def test_a_peer_that_drips_is_not_waited_for(answer: Callable[[socket.socket], object]) -> None:
    with served(answer) as address:
        began = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            send_request(address, "GET", "/", timeout_s=TIMEOUT_S, limit_bytes=99999, headers={})
        assert time.monotonic() - began < LATE_S


def test_a_metadata_service_that_drips_is_an_outage() -> None:
    """The thread that would receive a preemption must not hang on it."""
    with served(dripping(b"HTTP/1.1 200 OK\r\n")) as (host, port):
        began = time.monotonic()
        with pytest.raises(MetadataError, match="timed out"):
            Watcher(f"http://{host}:{port}", timeout_s=TIMEOUT_S).poll()
        assert time.monotonic() - began < LATE_S
