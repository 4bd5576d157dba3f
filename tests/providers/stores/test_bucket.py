"""The bucket store over a failing connection: number of requests and types of errors."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from providers.stores import open_store
from providers.stores.base import (
    ConflictError,
    ObjectStore,
    StoreDeniedError,
    StoreUnavailableError,
)
from tests.fixtures.waiting import LIMIT_S
from tests.providers.stores.conftest import Remote

_OURS = {"content-length", "transfer-encoding", "connection", "server", "date"}


class Line(ThreadingHTTPServer):
    """A proxy in front of the bucket; `fault` is what happens to requests of `method`.

    "lose" performs the request and cuts the connection, a number answers with that status
    instead, "hang" never answers. `left` counts down the faults.
    """

    daemon_threads = True
    fault: str | int = ""
    method = "PUT"
    left = 0

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.target = urlsplit(target).netloc
        self.methods: list[str] = []
        self.free = threading.Event()

    def break_down(self, fault: str | int, method: str = "PUT", times: int = 99) -> None:
        self.fault, self.method, self.left = fault, method, times
        self.methods.clear()


class _Request(BaseHTTPRequestHandler):
    server: Line
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        line = self.server
        line.methods.append(self.command)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = line.fault if self.command == line.method and line.left > 0 else ""
        line.left -= bool(fault)
        if fault == "hang":
            line.free.wait(LIMIT_S)
            self.close_connection = True
            return
        if isinstance(fault, int):
            self.send_response(fault)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        onward = http.client.HTTPConnection(line.target, timeout=LIMIT_S)
        try:
            onward.request(self.command, self.path, body, dict(self.headers))
            reply = onward.getresponse()
            data = reply.read()
        finally:
            onward.close()
        if fault == "lose":
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in _OURS:
                self.send_header(name, value)
        length = reply.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def line(remote: Remote) -> Iterator[Line]:
    with Line(remote.options["endpoint"]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.free.set()
            server.shutdown()
            thread.join(LIMIT_S)


@pytest.fixture
def store(line: Line, remote: Remote) -> ObjectStore:
    host, port = line.server_address[:2]
    endpoint = f"http://{host}:{port}{urlsplit(remote.options['endpoint']).path}"
    return open_store(remote.url(), {**remote.options, "endpoint": endpoint, "timeout_s": "1.0"})


def test_a_lost_answer_is_unknown_and_the_write_was_sent_once(
    store: ObjectStore, line: Line
) -> None:
    line.break_down("lose")
    with pytest.raises(StoreUnavailableError):
        store.put_if("HEAD", b"mine", None)
    assert line.methods == ["PUT"]
    line.break_down("")
    data, tag = store.get("HEAD")
    assert data == b"mine"
    line.break_down("lose")
    with pytest.raises(StoreUnavailableError):
        store.put_if("HEAD", b"mine 2", tag)
    assert line.methods == ["PUT"]
    line.break_down("")
    assert store.get("HEAD")[0] == b"mine 2"
    with pytest.raises(ConflictError):
        store.put_if("HEAD", b"mine 2", tag)


@pytest.mark.parametrize("fault", [500, 503, 429, 409, "hang"])
def test_a_conditional_write_is_never_repeated_by_the_client(
    store: ObjectStore, line: Line, fault: str | int
) -> None:
    tag = store.put_if("other", b"1", None)
    line.break_down(fault)
    with pytest.raises(StoreUnavailableError):
        store.put_if("HEAD", b"x", None)
    with pytest.raises(StoreUnavailableError):
        store.put_if("other", b"x", tag)
    assert line.methods.count("PUT") == 2


def test_what_may_be_repeated_is(store: ObjectStore, line: Line) -> None:
    line.break_down(503, "PUT", times=2)
    store.put("k", b"x")
    assert line.methods == ["PUT"] * 3
    line.break_down(500, "GET", times=1)
    assert store.get("k")[0] == b"x"


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.get("k"),
        lambda s: s.put("k", b""),
        lambda s: s.put_if("k", b"", None),
        lambda s: list(s.list("")),
    ],
)
def test_refused_is_not_unavailable(
    store: ObjectStore, line: Line, call: Callable[[ObjectStore], object]
) -> None:
    for method in ("GET", "PUT"):
        line.break_down(403, method)
        if (method == "PUT") == ("put" in call.__code__.co_names[0]):
            with pytest.raises(StoreDeniedError, match="policy"):
                call(store)


def test_a_missing_bucket_is_refused(remote: Remote) -> None:
    scheme = urlsplit(remote.root).scheme
    store = open_store(f"{scheme}://no-such-bucket/x", remote.options)
    for call in (
        lambda: store.put("k", b"x"),
        lambda: store.put_if("k", b"x", None),
        lambda: list(store.list("")),
        lambda: store.get("k"),
    ):
        with pytest.raises(StoreDeniedError, match="no such bucket"):
            call()


def test_nobody_there_is_unavailable_soon(remote: Remote) -> None:
    timeout_s = f"{2 * LIMIT_S}"
    options = {**remote.options, "endpoint": "http://127.0.0.1:9", "timeout_s": timeout_s}
    store = open_store(remote.url(), options)
    started = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        store.put_if("k", b"x", None)
    assert time.monotonic() - started < LIMIT_S
