"""The fleet's past is read once for all jobs, and again when it is old."""

from __future__ import annotations

import pytest

from spotd.daemon.history_cache import HistoryCache
from spotd.domain.node_history import FleetHistory
from spotd.domain.units import S
from tests.sim.memory_store import MemoryStore

DAY = 86_400 * S
NOW = 100 * DAY


class Counting(MemoryStore):
    """Knows what it was asked."""

    def __init__(self) -> None:
        super().__init__("d0", lambda: None)
        self.asked: list[tuple[int, int]] = []
        fleet = self.node_history.fleet

        def counted(since_us: int, now_us: int) -> FleetHistory:
            self.asked.append((since_us, now_us))
            return fleet(since_us, now_us)

        self.node_history.fleet = counted  # type: ignore[method-assign]


def test_it_is_one_object_for_a_minute() -> None:
    store = Counting()
    reader = HistoryCache(store)
    first = reader.at(NOW)
    assert reader.at(NOW + 59 * S) is first
    assert reader.at(NOW + 60 * S) is not first
    assert store.asked == [(NOW - 30 * DAY, NOW), (NOW + 60 * S - 30 * DAY, NOW + 60 * S)]


def test_a_clock_that_was_put_back_does_not_keep_it() -> None:
    store = Counting()
    reader = HistoryCache(store)
    reader.at(NOW)
    reader.at(NOW - DAY)
    assert [now_us for _, now_us in store.asked] == [NOW, NOW - DAY]


@pytest.mark.parametrize("days", [1.0, 90.0])
def test_how_much_of_it_counts_is_configured(days: float) -> None:
    store = Counting()
    HistoryCache(store, lambda: days).at(NOW)
    assert store.asked == [(NOW - int(days * DAY), NOW)]
