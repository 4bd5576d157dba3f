"""Who holds which of the duties that belong to no job."""

from __future__ import annotations

from collections.abc import Callable, Collection

from spotd.domain.units import S
from spotd.store.leases import CLOCK, MARGIN_S, LeaseFence, asked
from tests.sim.memory.tables import Tables
from tests.sim.memory.transaction import Transaction


def take_duty(
    tx: Transaction, duty: str, holder: str, now: Callable[[], int], ttl_us: int
) -> int | None:
    """See Store.leases.take."""
    return _take(tx, [duty], holder, now(), ttl_us)[duty]


def take_duties(
    tx: Transaction, names: Collection[str], holder: str, now: Callable[[], int], ttl_us: int
) -> dict[str, int | None]:
    """See Store.leases.take_many."""
    known = [name for name in names if name in tx.tables.duties]
    return _take(tx, known, holder, now(), ttl_us)


def _take(
    tx: Transaction, names: Collection[str], holder: str, now_us: int, ttl_us: int
) -> dict[str, int | None]:
    tables = tx.tables
    given: dict[str, int | None] = {}
    for name in names:
        after, has = asked(tables.duties.get(name), holder, now_us, ttl_us)
        tx.put(tables.duties, name, after)
        given[name] = after.epoch if has else None
    if any(epoch is not None for epoch in given.values()):
        tx.put(tables.counters, CLOCK, max(tables.counters[CLOCK], now_us))
    return given


def free_all(tx: Transaction) -> None:
    """See Store.leases.release_all."""
    for duty, lease in list(tx.tables.duties.items()):
        tx.put(tx.tables.duties, duty, lease._replace(holder="", until_us=0))


def hold(tables: Tables, fence: LeaseFence) -> None:
    """Raises LostDutyError."""
    fence.check(tables.duties.get(fence.duty))


def check(tables: Tables, fence: LeaseFence, now_us: int) -> None:
    """See Store.leases.check."""
    fence.check(tables.duties.get(fence.duty), now_us + int(MARGIN_S * S))


def newest_us(tables: Tables) -> int:
    """See Store.leases.newest_us."""
    armed = (tables.nodes[node_id].call.effect_armed_at_us for node_id in tables.active)
    return max(tables.counters[CLOCK], max(armed, default=0))
