"""Alerts that wait to be sent, and their delivery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    and_,
    bindparam,
    case,
    func,
    select,
    update,
)

from spotd.domain.events import Event
from spotd.store import schema
from spotd.store.codec import decode
from spotd.store.rows import ZERO
from spotd.store.session import Repository, read_one, write
from spotd.store.transaction import Transaction


@dataclass(frozen=True)
class AlertRow:
    """An undelivered message of the outbox. `repeats` counts coalesced ones (1: just itself)."""

    id: int
    route: str
    at_us: int
    job_id: str
    job_name: str
    event: Event
    repeats: int
    tries: int


@dataclass(frozen=True)
class RouteRow:
    """Delivery through one route.

    The time of the last delivery (0: none), the number of waiting messages, the time of the oldest
    of them (0: none waits), and the last error among these ("": none).
    """

    route: str
    delivered_at_us: int
    waiting: int
    since_us: int
    error: str


_alerts, _jobs = schema.alerts.c, schema.jobs.c
_SENT = bindparam("sent", type_=BigInteger)
_DELIVERED = bindparam("delivered", type_=Integer)
_MORE = _alerts.repeats > _DELIVERED  # it happened again while the message was on its way
_MARK = (
    update(schema.alerts)
    .where(_alerts.id == bindparam("alert"), _alerts.sent_at_us == 0)
    .values(
        sent_at_us=case((_MORE, 0), else_=_SENT),
        repeats=case((and_(_MORE, _SENT > 0), _alerts.repeats - _DELIVERED), else_=_alerts.repeats),
        next_at_us=bindparam("next"),
        error=bindparam("failure"),
        tries=_alerts.tries + 1,
    )
)
_DUE = (
    select(schema.alerts, _jobs.name.label("job_name"))
    .join(schema.jobs, _jobs.id == _alerts.job_id, isouter=True)
    .where(_alerts.sent_at_us == ZERO, _alerts.next_at_us <= bindparam("now", type_=BigInteger))
    .order_by(_alerts.id)
    .limit(bindparam("most", type_=Integer))
)


class AlertRepository(Repository):
    """The outbox of alerts."""

    @read_one
    def due(self, conn: Connection, now_us: int, limit: int) -> list[AlertRow]:
        """Return the messages to send now, oldest first; at most `limit`."""
        return [
            AlertRow(
                id=row.id,
                route=row.route,
                at_us=row.at_us,
                job_id=row.job_id or "",
                job_name=row.job_name or "",
                event=decode(Event, row.event),
                repeats=row.repeats,
                tries=row.tries,
            )
            for row in conn.execute(_DUE, {"now": now_us, "most": limit})
        ]

    @write
    def mark(
        self,
        tx: Transaction,
        rows: Sequence[AlertRow],
        sent_at_us: int,
        next_at_us: int,
        error: str,
    ) -> None:
        """Record the delivery of `rows` (`sent_at_us` > 0), or their next attempt at `next_at_us`.

        Repeats that arrived since `rows` were read stay to be sent.
        """
        values = {"sent": sent_at_us, "next": next_at_us, "failure": error}
        if rows:
            tx.conn.execute(
                _MARK, [{"alert": row.id, "delivered": row.repeats, **values} for row in rows]
            )

    @write
    def put_off(self, tx: Transaction, rows: Sequence[AlertRow], next_at_us: int) -> None:
        """Send these undelivered messages at `next_at_us` only."""
        numbers = [row.id for row in rows]
        where = _alerts.id.in_(numbers) & (_alerts.sent_at_us == 0)
        tx.conn.execute(update(schema.alerts).where(where).values(next_at_us=next_at_us))

    @read_one
    def routes(self, conn: Connection) -> list[RouteRow]:
        """The delivery state of each route that ever had an alert."""
        unsent, delivered = (
            _alerts.sent_at_us == ZERO,
            and_(_alerts.sent_at_us > ZERO, _alerts.error == ""),
        )
        rows = conn.execute(
            select(
                _alerts.route,
                func.max(case((delivered, _alerts.sent_at_us), else_=0)).label("delivered"),
                func.sum(case((unsent, 1), else_=0)).label("waiting"),
                func.min(case((unsent, _alerts.at_us))).label("since"),
                func.max(case((and_(unsent, _alerts.error != ""), _alerts.id), else_=0)).label(
                    "failed"
                ),
            )
            .group_by(_alerts.route)
            .order_by(_alerts.route)
        ).all()
        failed = select(_alerts.id, _alerts.error).where(
            _alerts.id.in_([row.failed for row in rows])
        )
        errors = {row.id: row.error for row in conn.execute(failed)}
        return [
            RouteRow(
                row.route,
                int(row.delivered),
                int(row.waiting),
                int(row.since or 0),
                errors.get(row.failed, ""),
            )
            for row in rows
        ]
