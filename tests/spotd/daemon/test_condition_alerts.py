"""What keeps a daemon from its work is told once as it begins, and once as it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.base.clock import SystemClock
from spotd.daemon.condition_alerts import ConditionAlerts
from spotd.domain.events import Event, Severity
from spotd.store.errors import StoreUnavailableError
from spotd.store.sql_store import SqlStore, open_store

WHY = "jump host spotd@bastion:22 of provider aws cannot be reached: it refuses spotd's key"
OVER = "the jump host of provider aws responds again"


@pytest.fixture
def store(quick_folder: Path) -> Iterator[SqlStore]:
    clock = SystemClock()
    opened = open_store(
        f"sqlite:///{quick_folder}/spotd.db",
        now=clock.now_us,
        notify=lambda: None,
        deployment_factory=lambda: "d0",
    )
    yield opened
    opened.close()


@pytest.fixture
def told(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    events: list[Event] = []
    real = store.events.add

    def add(job_id: str, event: Event, at_us: int) -> None:
        real(job_id, event, at_us)
        events.append(event)

    monkeypatch.setattr(store.events, "add", add)
    return events


def test_each_is_told_once_until_it_is_over(store: SqlStore, told: list[Event]) -> None:
    hindrances = ConditionAlerts(store, SystemClock())
    for why in ("", WHY, WHY, WHY, "", "", WHY):
        hindrances.update({"jump:aws": (why, OVER), "jump:gcp": ("", OVER)})
    assert [event.text for event in told] == [WHY, OVER, WHY]
    assert {(event.kind, event.key, event.alert) for event in told} == {("jump", "jump:aws", True)}
    levels = [Severity.ERROR, Severity.INFO, Severity.ERROR]
    assert [event.severity for event in told] == levels


def test_what_is_taken_out_of_the_configuration_ends_without_a_word(
    store: SqlStore, told: list[Event]
) -> None:
    hindrances = ConditionAlerts(store, SystemClock())
    for found in ({"jump:aws": (WHY, OVER)}, {}, {"jump:aws": ("", OVER)}):
        hindrances.update(found)
    assert [event.text for event in told] == [WHY]


def test_what_the_store_did_not_take_is_told_again(
    store: SqlStore, told: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    hindrances, real = ConditionAlerts(store, SystemClock()), store.events.add

    def away(*_arguments: object) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(store.events, "add", away)
    hindrances.update({"jump:aws": (WHY, OVER)})
    monkeypatch.setattr(store.events, "add", real)
    hindrances.update({"jump:aws": (WHY, OVER)})
    assert [event.text for event in told] == [WHY]
