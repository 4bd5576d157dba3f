"""The copy of the database that the API hands out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from typing import Any

import anyio
import pytest

from spotd.api.http import app
from spotd.api.http.app import make_app
from spotd.api.http.permissions import Permissions
from spotd.api.http.route_table import ROUTES
from spotd.api.request.request import ApiRequest
from spotd.api.routes import backup
from spotd.api.routes.backup import copy_database
from spotd.store.errors import StoreError
from tests.spotd.api.rig import Rig

Message = MutableMapping[str, Any]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def ask(rig: Rig, uid: int, said: list[Message], *, hangs_up: bool = False) -> None:
    """A request of a user, and what is answered, as it comes; or the user hangs up at once."""
    app = make_app(rig.context(), Permissions(trusted=frozenset({0}), is_member=lambda *_: False))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/db/backup",
        "query_string": b"",
        "headers": [],
        "client": (f"uid:{uid}", 1),
    }

    asked = False

    async def receive() -> Message:
        nonlocal asked
        if asked and hangs_up:
            return {"type": "http.disconnect"}
        if asked:
            await anyio.sleep_forever()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        said.append(message)

    anyio.run(app, scope, receive, send)


def outcomes(rig: Rig) -> list[tuple[str, str]]:
    return [(row.action, row.outcome.value) for row in rig.store.audit.rows(0)]


def test_it_is_nameless_and_whole(rig: Rig) -> None:
    copy = copy_database(ApiRequest(rig.context()))
    assert list((rig.folder / "spool").iterdir()) == [], "whatever ends us, it is gone"
    with copy.file:
        data = b"".join(copy.chunks())
    assert data.startswith(b"SQLite format 3\x00")
    assert copy.headers["Content-Length"] == str(len(data))
    assert copy.headers["X-Spotd-Sha256"] == hashlib.sha256(data).hexdigest()


def test_it_is_on_record_before_its_first_byte_and_passes_as_it_comes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy may be larger than the memory of the box."""
    said: list[Message] = []
    seen: list[tuple[int, list[tuple[str, str]]]] = []

    class Watched(backup.BackupFile):
        def chunks(self) -> Iterator[bytes]:
            for chunk in super().chunks():
                seen.append((len(said), outcomes(rig)))
                yield chunk

    monkeypatch.setattr(backup, "BackupFile", Watched)
    monkeypatch.setattr(backup, "CHUNK_BYTES", 4096)
    ask(rig, 0, said)
    assert said[0]["status"] == 200
    assert b"".join(message["body"] for message in said[1:]).startswith(b"SQLite format 3\x00")
    assert len(seen) > 2
    record = [("db backup", "asked"), ("db backup", "done")]
    assert seen == [(1 + at, record) for at in range(len(seen))]
    assert outcomes(rig) == record


def test_one_that_cannot_be_made_is_on_record_with_its_reason(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr("spotd.store.backup._copy_sqlite", full)
    said: list[Message] = []
    ask(rig, 0, said)
    assert said[0]["status"] >= 500
    assert outcomes(rig) == [("db backup", "asked"), ("db backup", "failed")]
    assert rig.store.audit.rows(0)[-1].text == "the disk is full"


def test_it_is_for_admins_alone(rig: Rig) -> None:
    said: list[Message] = []
    ask(rig, 4_000_000, said)
    assert said[0]["status"] == 403
    assert outcomes(rig) == [("db backup", "refused")]
    assert not (rig.folder / "spool").exists() or not list((rig.folder / "spool").iterdir())


def test_whoever_hangs_up_leaves_no_copy_open(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no name: as long as it is open it fills the disk unseen."""
    copies = []

    def copy(call: ApiRequest) -> backup.BackupFile:
        copies.append(copy_database(call))
        return copies[-1]

    rows = (replace(row, handler=copy) if "backup" in row.operation.path else row for row in ROUTES)
    monkeypatch.setattr(app, "ROUTES", tuple(rows))
    ask(rig, 0, [], hangs_up=True)
    assert [copy.file.closed for copy in copies] == [True]
