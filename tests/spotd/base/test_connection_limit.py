"""The limits of connections whose TLS handshake is not complete, on real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from spotd.base import connection_limit
from spotd.base.connection_limit import MOST_HALF_OPEN, MOST_HALF_OPEN_OF_ADDRESS, TlsListener


@pytest.fixture
def listener() -> Iterator[TlsListener]:
    with TlsListener(socket.AF_INET) as made:
        made.bind(("0.0.0.0", 0))
        made.listen(256)
        yield made
        for entry in made.half_open():
            entry.connection.close()


def connect(listener: TlsListener, source: str = "127.0.0.1") -> socket.socket:
    address = ("127.0.0.1", listener.getsockname()[1])
    return socket.create_connection(address, source_address=(source, 0))


def test_one_address_has_few_half_open_connections_and_others_still_come(
    listener: TlsListener,
) -> None:
    silent = [connect(listener) for _ in range(MOST_HALF_OPEN_OF_ADDRESS)]
    for _ in silent:
        listener.accept()
    with connect(listener) as refused:
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        assert refused.recv(1) == b""
    with connect(listener, "127.0.0.2"):
        assert listener.accept()[1][0] == "127.0.0.2"
    for client in silent:
        client.close()


def test_all_addresses_together_have_a_limit(listener: TlsListener) -> None:
    sources = [f"127.0.1.{1 + number // 16}" for number in range(MOST_HALF_OPEN)]
    silent = [connect(listener, source) for source in sources]
    for _ in silent:
        listener.accept()
    with connect(listener, "127.0.0.2"), pytest.raises(ConnectionAbortedError):
        listener.accept()
    assert len(listener.half_open()) == MOST_HALF_OPEN
    for client in silent:
        client.close()


def test_a_long_handshake_ends_when_another_connection_comes(
    listener: TlsListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(listener) as silent, connect(listener):
        held, _ = listener.accept()
        monkeypatch.setattr(connection_limit, "HANDSHAKE_S", 0.0)
        listener.accept()
        assert silent.recv(1) == b""
        assert held.recv(1) == b"", "asyncio sees the end, and closes it"
