"""The outbox and the duties: who may send, what waits to be sent, what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, Connection, Integer, and_, bindparam, case, select, update

from spotd.model import Event
from spotd.store import schema
from spotd.store.base import AlertRow
from spotd.store.codec import decode
from spotd.store.transaction import Transaction

ALERTS = "alerts"  # the duty whose holder sends

_alerts, _duties, _jobs = schema.alerts.c, schema.duties.c, schema.jobs.c
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
    if row is None:
        values = {"name": duty, "holder": holder, "epoch": 1, "until_us": now_us + ttl_us}
        conn.execute(schema.duties.insert().values(**values))
        return 1
    held = row.until_us > now_us
    if held and row.holder != holder:
        return None
    epoch = row.epoch if held else row.epoch + 1
    conn.execute(
        update(schema.duties)
        .where(_duties.name == duty)
        .values(holder=holder, epoch=epoch, until_us=now_us + ttl_us)
    )
    return int(epoch)


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
