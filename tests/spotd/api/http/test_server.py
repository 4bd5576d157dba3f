"""The socket itself: who may open it, who else has it, what is left behind."""

from __future__ import annotations

import http.client
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from spotd.api.http import server as server_module
from spotd.api.http.server import SocketError, serve
from tests.fixtures.waiting import LIMIT_S, until


async def who(request: Request) -> Response:
    client, server = request.scope["client"], request.scope["server"]
    return PlainTextResponse(f"{client[0]} {client[1]} {server[1]}")


async def slow(_: Request) -> Response:
    await anyio.sleep(3 * LIMIT_S)
    return PlainTextResponse("late")


APP = Starlette(routes=[Route("/who", who), Route("/slow", slow)])


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as folder:
        yield Path(folder) / "run" / "spotd.sock"


def ask(path: Path, url: str, headers: Mapping[str, str] | None = None) -> str:
    connection = http.client.HTTPConnection("spotd", timeout=LIMIT_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(LIMIT_S)
    try:
        connection.sock.connect(str(path))
        connection.request("GET", url, headers=dict(headers or {}))
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_no_header_says_who_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of containers set this; the server's own default would believe the header then."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    running = serve(APP, path)
    try:
        said = ask(path, "/who", {"X-Forwarded-For": "uid:777", "X-Forwarded-Proto": "https"})
        assert said.startswith(f"uid:{os.getuid()} ")
    finally:
        running.stop()


@pytest.mark.req("UX-01")
def test_serves_and_cleans_up(path: Path) -> None:
    server = serve(APP, path)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert ask(path, "/who") == f"uid:{os.getuid()} {os.getpid()} None"
    finally:
        server.stop()
    assert not path.exists()
    assert not server.web.thread.is_alive()


def test_a_busy_socket_is_refused_and_stays_alive(path: Path) -> None:
    server = serve(APP, path)
    try:
        with pytest.raises(SocketError, match="another process serves") as caught:
            serve(APP, path)
        assert "stop that daemon first" in caught.value.try_
        assert ask(path, "/who").startswith("uid:")
    finally:
        server.stop()


def test_a_foreign_listener_is_busy_too(path: Path) -> None:
    """Something that listens there without our lock: still not ours to take."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(SocketError, match="another process serves"):
            serve(APP, path)
        assert path.exists()


def test_two_that_start_at_once_are_one(path: Path) -> None:
    """While one daemon is between its lock and its socket, another must keep off."""
    lock = server_module._lock(path)
    try:
        with pytest.raises(SocketError, match="another process serves"):
            serve(APP, path)
    finally:
        os.close(lock)
    serve(APP, path).stop()


def test_the_socket_of_a_killed_daemon_is_replaced(path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from starlette.applications import Starlette\n"
        "from spotd.api.http.server import serve\n"
        "serve(Starlette(), pathlib.Path(sys.argv[1]))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        with pytest.raises(SocketError, match="another process serves"):
            serve(APP, path)
        child.kill()
    assert path.exists()
    server = serve(APP, path)
    try:
        assert ask(path, "/who").startswith("uid:")
    finally:
        server.stop()


def test_stop_does_not_wait_for_a_long_poll(path: Path) -> None:
    server = serve(APP, path)
    received: list[str] = []

    def wait() -> None:
        with suppress(OSError, http.client.HTTPException):
            received.append(ask(path, "/slow"))

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: server.web.server.server_state.tasks)
    server.stop(LIMIT_S)
    assert not server.web.thread.is_alive()
    thread.join(LIMIT_S)
    assert "late" not in received


@pytest.mark.parametrize("name", ["x" * 120, "taken/spotd.sock"])
def test_an_impossible_path_is_a_clear_error(path: Path, name: str) -> None:
    path.parent.mkdir()
    (path.parent / "taken").write_text("a file, not a folder")
    with pytest.raises(SocketError) as caught:
        serve(APP, path.parent / name)
    assert "`socket` in config.toml" in caught.value.try_
