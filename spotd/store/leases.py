"""Who holds which of the duties that belong to no job: a lease with an epoch for each.

What makes two daemons safe is the epoch, whatever their clocks say. Every write of a duty shares
the lease's row until its transaction ends: a takeover waits for it, and a write that comes after a
takeover finds another epoch and is refused.

Clocks only say when a holder counts as dead, each by the clock of who asks. A lease that ends later
than the asker itself could make it comes from a clock that is ahead (or ours was set back): it is
cut to a full one from now. So a duty is free one lease after its holder was last heard of, however
far clocks are apart. One that is ahead by more than a lease may take a duty from a holder that
lives, which costs that one a refused write, and keeps it from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, case, func, select, update

from spotd.domain.units import S
from spotd.store import schema
from spotd.store.interface import LostLeaseError
from spotd.store.rows import NOT_GONE

CLOCK = "clock"  # the counter that keeps the latest time
MARGIN_S = 5.0  # of a lease are left, or nothing is begun that no transaction can take back

_duties, _counters, _nodes = schema.duties.c, schema.counters.c, schema.nodes.c
_LEASE = select(schema.duties).where(_duties.name == bindparam("duty"))
_TAKEN = _LEASE.with_for_update()
_SHARED = _LEASE.with_for_update(read=True)
_MANY = (
    select(schema.duties)
    .where(_duties.name.in_(bindparam("duties", expanding=True)))
    .with_for_update(skip_locked=True)
)
_NOW = bindparam("now", type_=BigInteger)
_KEEP_TIME = (
    update(schema.counters)
    .where(_counters.name == CLOCK)
    .values(value=case((_counters.value > _NOW, _counters.value), else_=_NOW))
)
_NEWEST = (
    select(_counters.value).where(_counters.name == CLOCK),
    select(func.max(_nodes.effect_armed_at_us)).where(NOT_GONE),
)
_CHANGE = (
    update(schema.duties)
    .where(_duties.name == bindparam("duty"))
    .values({name: bindparam(name) for name in ("holder", "epoch", "until_us")})
)


class Lease(NamedTuple):
    """One duty's. `holder` is empty when it was let go."""

    holder: str
    epoch: int
    until_us: int


@dataclass(frozen=True)
class LeaseFence:
    """What a store that belongs to a holder holds each of its writes against."""

    duty: str
    epoch: int

    def check(self, lease: Lease | None, until_us: int = 0) -> None:
        """Raises LostDutyError unless the lease is that of this epoch, and ends after `until_us`
        if that is given."""
        if lease is None or lease.epoch != self.epoch or lease.until_us < until_us:
            raise LostLeaseError(f"the duty {self.duty} is not ours any more")


def asked(lease: Lease | None, holder: str, now_us: int, ttl_us: int) -> tuple[Lease, bool]:
    """The lease after `holder` asked for it (to let it go: for no time), and whether it has it. The
    epoch grows whenever somebody gets it who did not have it."""
    if lease is None or (lease.holder != holder and lease.until_us <= now_us):
        lease = Lease(holder, lease.epoch + 1 if lease else 1, 0)
    elif lease.holder != holder:
        cut_us = now_us + ttl_us if ttl_us else lease.until_us
        return Lease(lease.holder, lease.epoch, min(lease.until_us, cut_us)), False
    return Lease(holder if ttl_us else "", lease.epoch, now_us + ttl_us), True


def take_duty(
    conn: Connection, duty: str, holder: str, now: Callable[[], int], ttl_us: int
) -> int | None:
    """See Store.take_duty."""
    row = conn.execute(_TAKEN, {"duty": duty}).one_or_none()
    before = None if row is None else Lease(row.holder, row.epoch, row.until_us)
    now_us = now()
    after, has = asked(before, holder, now_us, ttl_us)
    if has:
        _keep_time(conn, now_us)
    if before is None:
        conn.execute(schema.duties.insert().values(name=duty, **after._asdict()))
    elif after != before:
        conn.execute(_CHANGE, {"duty": duty, **after._asdict()})
    return after.epoch if has else None


def take_duties(
    conn: Connection, names: Collection[str], holder: str, now: Callable[[], int], ttl_us: int
) -> dict[str, int | None]:
    """See Store.take_duties."""
    rows = conn.execute(_MANY, {"duties": list(names)})
    before = {row.name: Lease(row.holder, row.epoch, row.until_us) for row in rows}
    now_us = now()
    after = {name: asked(lease, holder, now_us, ttl_us) for name, lease in before.items()}
    if any(has for _, has in after.values()):
        _keep_time(conn, now_us)
    changed = [
        {"duty": name, **lease._asdict()}
        for name, (lease, _) in after.items()
        if lease != before[name]
    ]
    if changed:
        conn.execute(_CHANGE, changed)
    return {name: lease.epoch if has else None for name, (lease, has) in after.items()}


def free_all(conn: Connection) -> None:
    """See SqlStore.free_duties."""
    conn.execute(update(schema.duties).values(holder="", until_us=0))


def holders(conn: Connection, now_us: int) -> dict[str, int]:
    """Who holds a duty at `now_us`, and when the last lease of each ends, in microseconds."""
    query = (
        select(_duties.holder, func.max(_duties.until_us))
        .where(_duties.holder != "", _duties.until_us > now_us)
        .group_by(_duties.holder)
        .order_by(_duties.holder)
    )
    return {str(holder): int(until_us) for holder, until_us in conn.execute(query)}


def hold(conn: Connection, fence: LeaseFence) -> None:
    """The lease is that of the fence until this transaction ends. Raises LostDutyError."""
    fence.check(_lease(conn, fence, shared=True))


def check(conn: Connection, fence: LeaseFence, now_us: int) -> None:
    """See Store.hold_duty."""
    fence.check(_lease(conn, fence, shared=False), now_us + int(MARGIN_S * S))


def _lease(conn: Connection, fence: LeaseFence, *, shared: bool) -> Lease | None:
    row = conn.execute(_SHARED if shared else _LEASE, {"duty": fence.duty}).one_or_none()
    return None if row is None else Lease(row.holder, row.epoch, row.until_us)


def _keep_time(conn: Connection, now_us: int) -> None:
    if not conn.execute(_KEEP_TIME, {"now": now_us}).rowcount:
        conn.execute(schema.counters.insert().values(name=CLOCK, value=now_us))


def newest_us(conn: Connection) -> int:
    """See Store.newest_us. Duties are taken every few seconds; calls are armed in between."""
    found = (conn.execute(query).scalar_one_or_none() for query in _NEWEST)
    return max(at_us or 0 for at_us in found)
