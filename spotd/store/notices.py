"""Notices: one row per node and notice, whoever reported it first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, and_, func, literal, select, update

from providers.base import Notice, NoticeKind
from spotd.domain.events import Event
from spotd.domain.node import NoticeRecord
from spotd.store import schema
from spotd.store.rows import NodeRow, notice_of
from spotd.store.transaction import Transaction
from spotd.wire import DRILL_SOURCE

_notices = schema.notices.c
_MOVING = ("withdrawn", "heard_at_us", "deadline_us")

# Of each node the notices in force by which its cloud takes the machine: when the first was heard,
# and the earliest deadline. A drill's notice is not the cloud's.
FIRST_WARNINGS = (
    select(
        _notices.node_id,
        func.min(_notices.heard_at_us).label("heard"),
        func.min(_notices.deadline_us).label("deadline"),
    )
    .where(
        _notices.kind.in_([kind.value for kind in NoticeKind if kind.takes_machine]),
        ~_notices.withdrawn,
        _notices.source != DRILL_SOURCE,
    )
    .group_by(_notices.node_id)
    .subquery()
)

Key = tuple[str, str]  # node id, notice id


@dataclass(frozen=True)
class NoticeObservation:
    """A notice about a node, on the daemon's clock."""

    node_id: str
    job_id: str
    notice_id: str
    kind: NoticeKind
    heard_at_us: int
    deadline_us: int | None
    source: str
    text: str
    again: bool = False  # it had been withdrawn just before


def from_cloud(row: NodeRow, notice: Notice, at_us: int) -> NoticeObservation:
    """A notice from the cloud's own queue about the node `row`."""
    texts = (notice.source, notice.text)
    return NoticeObservation(
        row.id, row.job_id, notice.notice_id, notice.kind, at_us, notice.deadline_us, *texts
    )


def record(tx: Transaction, observed: Sequence[NoticeObservation]) -> None:
    """Store notices that are new."""
    known = _known(tx.conn, observed)
    now = dict(known)
    texts: dict[Key, str] = {}
    for notice in observed:
        key = (notice.node_id, notice.notice_id)
        now[key], is_news = after(now.get(key), notice)
        texts.setdefault(key, notice.text)
        if is_news:
            tx.event(notice.job_id, event_of(notice), notice.heard_at_us)
    for key in texts:
        if key in known and now[key] != known[key]:
            where = and_(_notices.node_id == key[0], _notices.notice_id == key[1])
            values = {name: getattr(now[key], name) for name in _MOVING}
            tx.conn.execute(update(schema.notices).where(where).values(**values))
    fresh = [
        {"node_id": key[0], "text": text, **vars(now[key]), "kind": now[key].kind.value}
        for key, text in texts.items()
        if key not in known
    ]
    if fresh:
        tx.conn.execute(schema.notices.insert(), fresh)


def after(old: NoticeRecord | None, observed: NoticeObservation) -> tuple[NoticeRecord, bool]:
    """Return a notice's record after an observation, and whether it is new.

    A known notice keeps the time at which it was first received, and takes the earlier of two
    deadlines. A notice that was withdrawn is new again.
    """
    times = (observed.heard_at_us, observed.deadline_us)
    if old is None:
        return NoticeRecord(observed.notice_id, observed.kind, *times, source=observed.source), True
    if old.withdrawn or observed.again:
        return replace(old, heard_at_us=times[0], deadline_us=times[1], withdrawn=False), True
    deadlines = [at for at in (old.deadline_us, observed.deadline_us) if at is not None]
    return replace(old, deadline_us=min(deadlines, default=None)), False


def withdraw(tx: Transaction, node_id: str, notice_id: str) -> None:
    """The notice is no longer in force."""
    where = and_(_notices.node_id == node_id, _notices.notice_id == notice_id)
    tx.conn.execute(update(schema.notices).where(where).values(withdrawn=True))


def carry(conn: Connection, old_id: str, new_id: str) -> None:
    """Copy a machine's notices to its new row."""
    columns = [column for column in schema.notices.columns if column.name != "node_id"]
    copied = select(literal(new_id), *columns).where(_notices.node_id == old_id)
    names = ["node_id", *(column.name for column in columns)]
    conn.execute(schema.notices.insert().from_select(names, copied))


def _known(conn: Connection, observed: Sequence[NoticeObservation]) -> dict[Key, NoticeRecord]:
    keys = sorted({(notice.node_id, notice.notice_id) for notice in observed})
    if not keys:
        return {}
    nodes = sorted({node for node, _ in keys})
    rows = conn.execute(select(schema.notices).where(_notices.node_id.in_(nodes)))
    return {(row.node_id, row.notice_id): notice_of(row) for row in rows}


def event_of(notice: NoticeObservation) -> Event:
    words = f"{notice.kind.value} notice heard"
    if notice.deadline_us is not None:
        words += f", {(notice.deadline_us - notice.heard_at_us) / 1e6:.0f} s left"
    if notice.source:
        words += f" ({notice.source})"
    return Event("notice_heard", words, notice.node_id, data={"notice_id": notice.notice_id})
