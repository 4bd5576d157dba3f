"""The quarantine begins and ends once each, and tells."""

from __future__ import annotations

from spotd.domain.events import Severity
from spotd.domain.units import S
from spotd.store.interface import Store
from spotd.store.sql_store import SqlStore
from tests.spotd.store.build import NOW
from tests.spotd.store.conftest import make


def told(store: Store) -> list[tuple[str, int]]:
    return [(row.event.kind, row.at_us) for row in store.events.rows(None)]


def test_it_begins_and_ends_once_each(store: Store) -> None:
    assert store.deployment.quarantine() == ""
    store.deployment.set_quarantine("", NOW)
    assert told(store) == []
    store.deployment.set_quarantine("restored\x00", NOW)
    store.deployment.set_quarantine("another reason", NOW + S)
    assert store.deployment.quarantine() == "restored", "the first reason stays"
    assert told(store) == [("quarantine", NOW)]
    (row,) = store.alerts.due(NOW, 9)
    assert row.event.severity is Severity.ERROR
    assert "restored" in row.event.text
    store.deployment.set_quarantine("", NOW + 2 * S)
    store.deployment.set_quarantine("", NOW + 3 * S)
    assert store.deployment.quarantine() == ""
    assert told(store)[1:] == [("quarantine_released", NOW + 2 * S)]
    assert len(store.alerts.due(NOW + 9 * S, 9)) == 1, "its end alerts nobody"


def test_it_outlives_a_restart(sql_store: SqlStore, url: str) -> None:
    sql_store.deployment.set_quarantine("restored", NOW)
    again = make(url)
    assert again.deployment.quarantine() == "restored"
    again.close()


def test_a_database_that_lies_elsewhere_than_it_did_is_in_quarantine(store: Store) -> None:
    for _ in range(2):
        store.deployment.record_home(7, "moved", NOW)
        assert store.deployment.quarantine() == ""
    store.deployment.record_home(8, "moved", NOW + S)
    assert store.deployment.quarantine() == "moved"
    assert told(store) == [("quarantine", NOW + S)]
    store.deployment.set_quarantine("", NOW + 2 * S)
    store.deployment.record_home(8, "moved", NOW + 3 * S)
    assert store.deployment.quarantine() == "", "it was told, and a person has looked"
