"""Every route, asked with any bytes where bytes can be: its answer is not a failure of the
daemon's, and what is refused has changed no table and no file."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, MutableMapping
from contextlib import closing
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp

from spotd.api.http import app
from spotd.api.http.app import make_app
from spotd.api.http.permissions import Permissions
from spotd.api.http.route import Kind
from spotd.api.http.route_table import BY_KEY
from tests.fixtures.examples import examples
from tests.spotd.api.rig import Rig, story

EXAMPLES = examples(4)
ROUTES = {
    f"{verb} {path}": route
    for (verb, path), route in BY_KEY.items()
    if route.kind is not Kind.OPENAPI
}
NAMES = ["gpt", "aws", "A", "root", "0" * 64, "\x00", "\ud800", "a/b", "..", "%2e"]
HEADERS = [b"content-length", b"content-type", b"transfer-encoding", b"x-forwarded-for", b"host"]
Message = MutableMapping[str, Any]

words = st.one_of(st.sampled_from(NAMES), st.text(st.characters(codec=None), max_size=20))
numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([10**400, 1 << 63, -(1 << 63)]))
leaves = st.one_of(st.none(), st.booleans(), numbers, words)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)
)


def bodies(name: str) -> st.SearchStrategy[bytes]:
    """Any bytes; JSON of any shape; and what has the route's own fields, cut or with more."""
    fields = st.dictionaries(
        st.sampled_from(list(ROUTES[name].operation.body or [""])), values, max_size=4
    )
    whole = st.one_of(fields, values).map(lambda value: json.dumps(value).encode())
    broken = st.tuples(whole, st.integers(0, 40), st.binary(max_size=8))
    cut = broken.map(lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :])
    return st.one_of(st.just(b""), whole, whole, cut, st.binary(max_size=40))


def queries(name: str) -> st.SearchStrategy[bytes]:
    keys = st.sampled_from([*(ROUTES[name].operation.query or ["x"]), "wait_s", "limit", "job"])
    plain = st.one_of(numbers, words).map(lambda value: str(value).encode("utf-8", "surrogatepass"))
    pair = st.tuples(keys.map(str.encode), st.one_of(plain, st.binary(max_size=12)))
    return st.one_of(
        st.just(b""),
        st.lists(pair, max_size=3).map(lambda pairs: b"&".join(b"=".join(p) for p in pairs)),
        st.binary(max_size=30),
    )


@st.composite
def requests(draw: st.DrawFn, name: str) -> tuple[Message, list[Message]]:
    """A scope, and what the server hands on of the body: in parts, or cut off."""
    verb, path = name.split(" ")
    kept = re.sub(r"{\w+}", lambda _: draw(words), path)
    body = draw(bodies(name))
    at = draw(st.integers(0, len(body)))
    parts: list[Message] = [
        {"type": "http.request", "body": body[:at], "more_body": True},
        {"type": "http.request", "body": body[at:], "more_body": False},
    ]
    if draw(st.integers(0, 9)) == 0:
        parts[1] = {"type": "http.disconnect"}
    named = st.one_of(st.sampled_from(HEADERS), st.binary(max_size=8))
    scope = {
        "type": "http",
        "method": verb,
        "path": kept,
        "query_string": draw(queries(name)),
        "headers": draw(st.lists(st.tuples(named, st.binary(max_size=20)), max_size=3)),
        "server": ("/run/spotd.sock", None),
        "client": ("uid:0", 1),
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
    }
    return scope, parts


def ask(app: ASGIApp, scope: Message, parts: list[Message]) -> tuple[int, bytes]:
    """The status and the body of the answer."""
    said: list[Message] = []

    async def receive() -> Message:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        said.append(message)

    anyio.run(app, scope, receive, send)
    assert [message["type"] for message in said].count("http.response.start") == 1
    return int(said[0]["status"]), b"".join(message.get("body", b"") for message in said[1:])


def kept(rig: Rig) -> dict[str, object]:
    """Every row but the audit's, which has what was refused, too, and the counter of its ids; and
    every file but SQLite's."""
    with closing(sqlite3.connect(rig.folder / "db.sqlite")) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = {name for (name,) in tables} - {"audit", "counters"}
        select = 'SELECT * FROM "{}"'.format
        rows = {name: connection.execute(select(name)).fetchall() for name in sorted(names)}
    paths = (path for path in rig.folder.rglob("*") if path.is_file())
    files = sorted(str(path) for path in paths if not path.name.startswith("db.sqlite"))
    return {**rows, "files": files}


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One for all: what some requests leave behind is what the next ones meet."""
    rig = Rig()
    story(rig)
    yield rig
    rig.close()


@pytest.mark.parametrize("name", ROUTES)
def test_any_bytes_are_answered_and_a_refusal_changes_nothing(
    rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_WAIT_S", 0)
    asgi = make_app(rig.context(), Permissions())

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests(name))
    def check(request: tuple[Message, list[Message]]) -> None:
        before = kept(rig)
        status, answer = ask(asgi, *request)
        assert status < 500, answer
        if status >= 400:
            assert kept(rig) == before
            assert name.startswith("HEAD ") or json.loads(answer)["error"]["text"]

    check()
