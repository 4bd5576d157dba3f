"""A reload of the configuration is on record with what changed by it, and not done otherwise."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spotd.base.errors import UserError
from spotd.config.config import Config
from spotd.config.load import load_config
from spotd.daemon.reload import reload
from spotd.domain.events import AuditOutcome
from spotd.store.audit import AuditRow
from spotd.store.errors import StoreUnavailableError
from spotd.store.sql_store import SqlStore
from tests.spotd.store.build import NOW
from tests.spotd.store.conftest import make

CANARY = "canary-of-a-value-that-nobody-is-to-see"
BEFORE = """\
state_dir = "STATE"
[access]
admins = "those-who-may"
[providers.here]
kind = "local"
url = "http://127.0.0.1:8700"
personality = "aws"
token_file = "TOKEN"
[limits]
max_nodes = 4
"""
AFTER = BEFORE.replace("those-who-may", CANARY)
ASKED, DONE, REFUSED = AuditOutcome.ASKED, AuditOutcome.DONE, AuditOutcome.REFUSED


class Reloading:
    """A file that says `BEFORE`, and who takes over what it says then."""

    def __init__(self, store: SqlStore, folder: Path) -> None:
        self.store, self.path = store, folder / "config.toml"
        self.token = folder / "token"
        self.token.write_text("a-token-of-the-cloud")
        self.token.chmod(0o600)
        self.write(BEFORE)
        self.config = load_config(self.path, {"RUNTIME_DIRECTORY": "/run/spotd"})
        self.taken: list[Config] = []
        self.error: Exception | None = None

    def take_over(self, config: Config) -> None:
        if self.error is not None:
            raise self.error
        self.taken.append(config)

    def write(self, text: str) -> None:
        text = text.replace("TOKEN", str(self.token))
        self.path.write_text(text.replace("STATE", str(self.path.parent / "state")))

    def to(self, text: str) -> None:
        self.write(text)
        reload(self.config, self.take_over, self.store, NOW, "r1")

    def lines(self) -> list[tuple[AuditOutcome, str]]:
        rows = self.store.audit.rows(0)
        assert {(row.at_us, row.uid, row.user, row.request) for row in rows} <= {
            (NOW, -1, "root/systemd", "r1")
        }
        assert {(row.action, row.target) for row in rows} <= {
            ("config reload", f"{socket.gethostname()}:{self.path}")
        }
        assert CANARY not in repr(rows)
        return [(row.outcome, row.text) for row in rows]


@pytest.fixture
def reloading(quick_folder: Path) -> Iterator[Reloading]:
    with closing(make(f"sqlite:///{quick_folder}/spotd.db")) as store:
        yield Reloading(store, quick_folder)


def test_what_changed_is_on_record_by_name(reloading: Reloading) -> None:
    reloading.to(AFTER.replace("max_nodes = 4", "max_nodes = 7"))
    keys = "limits.max_nodes, access.admins"
    assert reloading.lines() == [(ASKED, keys), (DONE, keys)]
    assert len(reloading.taken) == 1


def test_a_file_that_says_the_same_is_on_record_too(reloading: Reloading) -> None:
    reloading.to(BEFORE)
    assert reloading.lines() == [(ASKED, "nothing changed"), (DONE, "nothing changed")]


def test_a_wrong_file_is_on_record_without_what_it_says(reloading: Reloading) -> None:
    reloading.to(BEFORE + f"{CANARY} = {CANARY}")
    assert reloading.lines() == [(REFUSED, "the one before stays in force")]
    assert reloading.taken == []


def test_what_cannot_be_taken_over_is_on_record_as_refused(reloading: Reloading) -> None:
    reloading.error = UserError(f"not while it runs: {CANARY}", "restart")
    reloading.to(AFTER)
    assert reloading.lines() == [
        (ASKED, "access.admins"),
        (REFUSED, "the one before stays in force"),
    ]


def test_what_cannot_be_put_on_record_is_not_taken_over(
    reloading: Reloading, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_row: AuditRow) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(reloading.store.audit, "add", away)
    reloading.to(AFTER)
    assert reloading.taken == []


def test_that_its_end_is_not_on_record_undoes_nothing(
    reloading: Reloading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anybody told that it was refused."""
    real = reloading.store.audit.add

    def late(row: AuditRow) -> None:
        if row.outcome is not ASKED:
            raise StoreUnavailableError("away")
        real(row)

    monkeypatch.setattr(reloading.store.audit, "add", late)
    reloading.to(AFTER)
    assert reloading.lines() == [(ASKED, "access.admins")]
    assert len(reloading.taken) == 1
    assert reloading.store.events.rows(None) == []
