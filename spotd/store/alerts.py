"""The outbox and the duties: who may send, what waits to be sent, what became of it."""

from __future__ import annotations

from collections.abc import Sequence

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

from spotd.model import Event
from spotd.states import NodeState
from spotd.store import schema
from spotd.store.base import AlertRow
from spotd.store.codec import decode
from spotd.store.transaction import Transaction

ALERTS = "alerts"  # the duty whose holder sends
CLOCK = "clock"  # the counter that keeps the latest time

_alerts, _duties, _jobs = schema.alerts.c, schema.duties.c, schema.jobs.c
_counters, _nodes = schema.counters.c, schema.nodes.c
_SENT = bindparam("sent", type_=BigInteger)
_TOLD = bindparam("told", type_=Integer)
_MORE = _alerts.repeats > _TOLD  # it happened again while the message was on its way
_MARK = (
    update(schema.alerts)
    .where(_alerts.id == bindparam("alert"), _alerts.sent_at_us == 0)
    .values(
        sent_at_us=case((_MORE, 0), else_=_SENT),
        repeats=case((and_(_MORE, _SENT > 0), _alerts.repeats - _TOLD), else_=_alerts.repeats),
        next_at_us=bindparam("next"),
        error=bindparam("said"),
        tries=_alerts.tries + 1,
    )
)


def take_duty(conn: Connection, duty: str, holder: str, now_us: int, ttl_us: int) -> int | None:
    """See Store.take_duty. The epoch grows whenever the duty changes hands or was let go."""
    query = select(schema.duties).where(_duties.name == duty).with_for_update()
    row = conn.execute(query).one_or_none()
    held = row is not None and row.until_us > now_us
    if row is not None and held and row.holder != holder:
        return None
    _keep_time(conn, now_us)
    if row is None:
        values = {"name": duty, "holder": holder, "epoch": 1, "until_us": now_us + ttl_us}
        conn.execute(schema.duties.insert().values(**values))
        return 1
    epoch = row.epoch if held else row.epoch + 1
    conn.execute(
        update(schema.duties)
        .where(_duties.name == duty)
        .values(holder=holder, epoch=epoch, until_us=now_us + ttl_us)
    )
    return int(epoch)


def _keep_time(conn: Connection, now_us: int) -> None:
    kept = case((_counters.value > now_us, _counters.value), else_=now_us)
    where = _counters.name == CLOCK
    if not conn.execute(update(schema.counters).where(where).values(value=kept)).rowcount:
        conn.execute(schema.counters.insert().values(name=CLOCK, value=now_us))


def newest_us(conn: Connection) -> int:
    """See Store.newest_us. Some duty is taken every second; calls are armed in between."""
    kept = select(_counters.value).where(_counters.name == CLOCK)
    armed = select(func.max(_nodes.effect_armed_at_us)).where(_nodes.state != NodeState.GONE.value)
    found = (conn.execute(query).scalar_one_or_none() for query in (kept, armed))
    return max(at_us or 0 for at_us in found)


def due_alerts(conn: Connection, now_us: int, limit: int) -> list[AlertRow]:
    """Unsent rows whose time has come, oldest first."""
    query = (
        select(schema.alerts, _jobs.name.label("job_name"))
        .join(schema.jobs, _jobs.id == _alerts.job_id, isouter=True)
        .where(_alerts.sent_at_us == 0, _alerts.next_at_us <= now_us)
        .order_by(_alerts.id)
        .limit(limit)
    )
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
        for row in conn.execute(query)
    ]


def mark_alerts(
    tx: Transaction,
    epoch: int,
    rows: Sequence[AlertRow],
    sent_at_us: int,
    next_at_us: int,
    error: str,
) -> bool:
    """See Store.mark_alerts. The duty's row stays locked, so that nobody takes it in between."""
    query = select(_duties.epoch).where(_duties.name == ALERTS).with_for_update()
    if tx.conn.execute(query).scalar_one_or_none() != epoch:
        return False
    said = {"sent": sent_at_us, "next": next_at_us, "said": error}
    if rows:
        tx.conn.execute(_MARK, [{"alert": row.id, "told": row.repeats, **said} for row in rows])
    return True
