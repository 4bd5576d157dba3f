"""Leases of duties, the periodic tasks that belong to no job: one daemon at a time holds each.

Each lease has an epoch, which keeps two daemons apart whatever their clocks say. Every write of a
duty locks the lease's row for sharing until its transaction ends: a takeover waits for it, and a
write after a takeover finds another epoch and is refused.

Clocks only decide when a holder counts as dead, by the clock of the daemon that checks. If a lease
ends later than that daemon's own lease would, the holder's clock is ahead (or the daemon's own was
set back): it is cut to a full lease from now. So a duty is free one lease after its holder's last
renewal, however much clocks differ. A daemon whose clock is ahead by more than a lease may take a
duty from a live holder; one write of that holder is then refused, and the new holder keeps the
duty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, case, func, select, update

from spotd.domain.units import S
from spotd.store import schema
from spotd.store.engine import BrokenRuleError
from spotd.store.errors import LostLeaseError
from spotd.store.rows import NOT_GONE
from spotd.store.session import Repository, Session, read, write_unfenced

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
    """One duty's lease. `holder` is empty if it was released."""

    holder: str
    epoch: int
    until_us: int


@dataclass(frozen=True)
class LeaseFence:
    """The lease that every write of a store is checked against."""

    duty: str
    epoch: int

    def hold(self, conn: Connection) -> None:
        """Keep the lease until this transaction ends. Raises LostLeaseError."""
        self.check(_lease(conn, self, shared=True))

    def check(self, lease: Lease | None, until_us: int = 0) -> None:
        """Raises LostLeaseError unless the lease has this epoch, and ends after `until_us` if that
        is given."""
        if lease is None or lease.epoch != self.epoch or lease.until_us < until_us:
            raise LostLeaseError(f"another daemon holds the task {self.duty}")


class LeaseRepository(Repository):
    """Leases of duties."""

    def __init__(self, session: Session, fence: LeaseFence | None) -> None:
        super().__init__(session)
        self._fence = fence

    @write_unfenced
    def release_all(self, conn: Connection) -> None:
        """Release every duty, for holders that are known to be dead."""
        conn.execute(update(schema.duties).values(holder="", until_us=0))

    @read
    def newest_us(self, conn: Connection) -> int:
        """The latest time that a daemon on this database is known to have had; 0 in a new
        database."""
        newest = (conn.execute(query).scalar_one_or_none() for query in _NEWEST)
        return max(at_us or 0 for at_us in newest)

    def take(self, duty: str, holder: str, now: Callable[[], int], ttl_us: int) -> int | None:
        """Take the lease of a duty and return its epoch; None if another holder has it.

        With `ttl_us` 0 it is released. A takeover waits for writes in progress, and reads the clock
        after that, when no other daemon can change the lease: so a holder that was frozen does not
        cut another's lease by a time long past.
        """

        def work(conn: Connection) -> int | None:
            return _take(conn, duty, holder, now, ttl_us)

        try:
            return self.session.database.write(work)
        except BrokenRuleError:
            return self.session.database.write(work)  # two took it first, at the same moment

    @write_unfenced
    def take_many(
        self,
        conn: Connection,
        duties: Collection[str],
        holder: str,
        now: Callable[[], int],
        ttl_us: int,
    ) -> dict[str, int | None]:
        """`take` of several duties in one transaction that waits for no write.

        Duties missing from the answer were never taken, or are locked now: take each by itself.
        """
        rows = conn.execute(_MANY, {"duties": list(duties)})
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

    @read
    def check(self, conn: Connection, now_us: int) -> None:
        """Raise LostLeaseError unless the lease is this store's and is valid for some more seconds.

        Call it right before something that no transaction can undo.
        """
        if self._fence is None:
            raise ValueError("no duty belongs to this store")
        self._fence.check(_lease(conn, self._fence, shared=False), now_us + int(MARGIN_S * S))


def asked(lease: Lease | None, holder: str, now_us: int, ttl_us: int) -> tuple[Lease, bool]:
    """The lease after `holder` requests it (releases it: `ttl_us` 0), and whether it has it.

    The epoch grows whenever the lease changes hands.
    """
    if lease is None or (lease.holder != holder and lease.until_us <= now_us):
        lease = Lease(holder, lease.epoch + 1 if lease else 1, 0)
    elif lease.holder != holder:
        cut_us = now_us + ttl_us if ttl_us else lease.until_us
        return Lease(lease.holder, lease.epoch, min(lease.until_us, cut_us)), False
    return Lease(holder if ttl_us else "", lease.epoch, now_us + ttl_us), True


def _take(
    conn: Connection, duty: str, holder: str, now: Callable[[], int], ttl_us: int
) -> int | None:
    """Take or release one lease."""
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


def holders(conn: Connection, now_us: int) -> dict[str, int]:
    """The holders of unexpired leases, and when the last lease of each ends, in microseconds."""
    query = (
        select(_duties.holder, func.max(_duties.until_us))
        .where(_duties.holder != "", _duties.until_us > now_us)
        .group_by(_duties.holder)
        .order_by(_duties.holder)
    )
    return {str(holder): int(until_us) for holder, until_us in conn.execute(query)}


def _lease(conn: Connection, fence: LeaseFence, *, shared: bool) -> Lease | None:
    row = conn.execute(_SHARED if shared else _LEASE, {"duty": fence.duty}).one_or_none()
    return None if row is None else Lease(row.holder, row.epoch, row.until_us)


def _keep_time(conn: Connection, now_us: int) -> None:
    if not conn.execute(_KEEP_TIME, {"now": now_us}).rowcount:
        conn.execute(schema.counters.insert().values(name=CLOCK, value=now_us))
