"""The door for Prometheus: one page, for whoever has the token."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator

import pytest

from spotd.api.http.metrics_server import MetricsServer, ScrapeError, serve_scrapes
from spotd.base import connection_limit
from spotd.base.connection_limit import MOST
from tests.fixtures.waiting import LIMIT_S

TOKEN = "a-token-of-some-length"


@pytest.fixture
def door() -> Iterator[MetricsServer]:
    door = serve_scrapes(lambda: b"spotd_up 1\n", "127.0.0.1", 0, TOKEN)
    yield door
    door.stop()


def ask(door: MetricsServer, path: str, given: str | None, verb: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=LIMIT_S)
    headers = {} if given is None else {"Authorization": given}
    connection.request(verb, path, headers=headers)
    reply = connection.getresponse()
    found = reply.status, reply.read()
    connection.close()
    return found


def test_who_has_the_token_reads_the_page(door: MetricsServer) -> None:
    assert ask(door, "/metrics", f"Bearer {TOKEN}") == (200, b"spotd_up 1\n")


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}",
     TOKEN, "Bearer \xe9"],
)  # fmt: skip
def test_who_has_not_gets_nothing(door: MetricsServer, given: str | None) -> None:
    status, body = ask(door, "/metrics", given)
    assert status == 401
    assert b"spotd_up" not in body
    assert TOKEN.encode() not in body


@pytest.mark.parametrize(
    ("verb", "path"),
    [("GET", "/v1/jobs"), ("GET", "/"), ("POST", "/metrics"), ("POST", "/v1/jobs/gpt/cancel")],
)
def test_there_is_nothing_else(door: MetricsServer, verb: str, path: str) -> None:
    assert ask(door, path, f"Bearer {TOKEN}", verb)[0] in (404, 405)


def test_who_only_connects_keeps_nobody_out_and_uses_up_no_files(
    door: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a token, as everybody on this machine can."""
    monkeypatch.setattr(connection_limit, "SILENT_S", 0.5)
    idle = [socket.create_connection(("127.0.0.1", door.port), 10) for _ in range(2 * MOST)]
    assert ask(door, "/metrics", f"Bearer {TOKEN}")[0] == 200
    assert len(door.web.server.server_state.connections) <= MOST
    for one in idle:
        with contextlib.suppress(ConnectionError):
            assert one.recv(1) == b""  # closed, all of them
        one.close()


def test_who_asks_and_stays_keeps_nobody_out(door: MetricsServer) -> None:
    stays = []
    for _ in range(MOST):
        one = http.client.HTTPConnection("127.0.0.1", door.port, timeout=LIMIT_S)
        one.request("GET", "/")
        assert one.getresponse().read()
        stays.append(one)
    assert ask(door, "/metrics", f"Bearer {TOKEN}")[0] == 200
    for one in stays:
        one.close()


def test_a_port_that_somebody_has_is_said(door: MetricsServer) -> None:
    with pytest.raises(ScrapeError, match=f"port {door.port}: Address already in use") as refused:
        serve_scrapes(bytes, "127.0.0.1", door.port, TOKEN)
    assert "metrics.listen" in refused.value.try_


def test_a_door_that_is_closed_is_free_again(door: MetricsServer) -> None:
    door.stop()
    serve_scrapes(bytes, "127.0.0.1", door.port, TOKEN).stop()
