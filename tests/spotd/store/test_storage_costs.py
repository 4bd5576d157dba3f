"""What checkpoints cost counts in what a job has spent, and in what all use."""

from __future__ import annotations

import pytest

from spotd.domain.units import S
from spotd.store.commit import CommitStatus
from spotd.store.interface import Store
from spotd.store.storage_costs import StorageCost
from spotd.store.transfers import DataTransfer
from tests.spotd.store.build import NOW, new_node, opening, placed, submit, view

MONTH = 30 * 86_400 * S


def carriage(cost: int, rate: int = 0, month_us: int = 0, at_us: int = NOW) -> StorageCost:
    return StorageCost("j1", month_us, cost, rate, at_us)


def test_the_newest_word_of_each_month_counts_and_they_add_up(store: Store) -> None:
    placed(store, "j1", new_node(number=0))
    alone = view(store).spent_microusd
    for row in (carriage(5, 1), carriage(7, 0), carriage(11, 2, MONTH)):
        store.storage_costs.record(row)
    assert store.storage_costs.rows() == [carriage(7), carriage(11, 2, MONTH)]
    assert view(store).spent_microusd == alone + 18


def test_a_job_without_a_machine_has_spent_it_too(store: Store) -> None:
    submit(store)
    assert view(store).spent_microusd == 0
    store.storage_costs.record(carriage(7))
    assert view(store).spent_microusd == 7


def test_where_it_became_more_the_job_is_due(store: Store) -> None:
    submit(store)
    [claimed] = store.jobs.claim(NOW, "me", 9, S)
    before = view(store).job.wakeup.notes
    store.storage_costs.record(carriage(5))
    assert view(store).job.wakeup.notes == before + 1
    store.storage_costs.record(carriage(5, 3, at_us=NOW + S))
    assert view(store).job.wakeup.notes == before + 1, "nothing that a limit could mind"
    store.storage_costs.record(carriage(6))
    assert view(store).job.wakeup.notes == before + 2
    assert claimed == "j1"


def test_what_it_costs_an_hour_is_part_of_what_all_use(store: Store) -> None:
    placed(store, "j1", new_node(number=0))
    alone = store.market.load(NOW).use.microusd_per_h
    store.storage_costs.record(carriage(5, 70, MONTH))
    assert store.market.load(NOW).use.microusd_per_h == alone + 70


@pytest.mark.parametrize(
    ("cost", "status"), [(9, CommitStatus.DONE), (10, CommitStatus.OVER_LIMIT)]
)
def test_who_has_spent_all_on_checkpoints_launches_nothing(
    store: Store, cost: int, status: CommitStatus
) -> None:
    submit(store, max_cost_microusd=10)
    store.storage_costs.record(carriage(cost))
    assert store.commit(view(store), opening(), NOW).status is status


def test_what_a_job_without_machines_keeps_is_in_nobodys_way(store: Store) -> None:
    """Nobody could give it back: a job at the limit would wait for it for ever."""
    submit(store)
    store.storage_costs.record(carriage(5, 70, MONTH))
    assert store.market.load(NOW).use.microusd_per_h == 0


def test_carriages_of_one_month(store: Store) -> None:
    submit(store)
    for row in (carriage(5), carriage(11, 2, MONTH)):
        store.storage_costs.record(row)
    assert store.storage_costs.rows(MONTH) == [carriage(11, 2, MONTH)]


def test_what_went_over_adds_up_by_job_store_node_and_month(store: Store) -> None:
    submit(store)
    first = DataTransfer("j1", "gs://c", "", 0, 5, 3, 1, NOW)
    for row in (
        first,
        first,
        DataTransfer("j1", "gs://c", "n", 0, 9),
        DataTransfer("j1", "gs://d", "", 0),
    ):
        store.transfers.add(row)
    store.transfers.add(DataTransfer("j1", "gs://c", "", 0, staged_at_us=7, began_at_us=8))
    store.transfers.end("j1", "gs://c", 11)
    store.transfers.end("j1", "gs://c", 12)
    assert store.transfers.rows() == store.transfers.rows("j1")
    assert store.transfers.rows("j2") == []
    brought, read, other = store.transfers.rows()
    assert brought == DataTransfer("j1", "gs://c", "", 0, 10, 6, 2, NOW, 7, 11)
    assert (read.bytes, read.gone_at_us, other.gone_at_us) == (9, 0, 0)
