"""Notices: one row per machine and notice, whoever told us first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, select, update

from providers.base import Notice, NoticeKind
from spotd.model import Event
from spotd.store import schema
from spotd.store.transaction import Transaction

_notices = schema.notices.c


@dataclass(frozen=True)
class Heard:
    """A notice about a node, on our clock."""

    node_id: str
    job_id: str
    notice_id: str
    kind: NoticeKind
    heard_at_us: int
    deadline_us: int | None
    source: str
    text: str
    again: bool = False  # it had been withdrawn just before


def from_cloud(row: Row[Any], notice: Notice, at_us: int) -> Heard:
    """A notice from the cloud's own queue about the node `row`."""
    said = (notice.source, notice.text)
    return Heard(
        row.id, row.job_id, notice.notice_id, notice.kind, at_us, notice.deadline_us, *said
    )


def record(tx: Transaction, heard: Sequence[Heard]) -> None:
    """Store what is new. A known one keeps the moment when it was first heard, and an earlier
    deadline replaces a later one; one that had been withdrawn is as good as new."""
    known = _known(tx.conn, heard)
    fresh: dict[tuple[str, str], dict[str, Any]] = {}
    for notice in heard:
        key = (notice.node_id, notice.notice_id)
        if key in fresh and not notice.again:
            continue
        old = known.get(key)
        if old is None:
            row = {name: getattr(notice, name) for name in _STORED}
            fresh[key] = {**row, "kind": notice.kind.value}
            tx.event(notice.job_id, _event(notice), notice.heard_at_us)
            continue
        where = and_(_notices.node_id == key[0], _notices.notice_id == key[1])
        values: dict[str, Any] = {"withdrawn": False}
        if old.withdrawn or notice.again:
            values |= {"heard_at_us": notice.heard_at_us, "deadline_us": notice.deadline_us}
            tx.event(notice.job_id, _event(notice), notice.heard_at_us)
        else:
            deadlines = [at for at in (old.deadline_us, notice.deadline_us) if at is not None]
            values["deadline_us"] = min(deadlines, default=None)
        tx.conn.execute(update(schema.notices).where(where).values(**values))
    if fresh:
        tx.conn.execute(schema.notices.insert(), list(fresh.values()))


_STORED = ("node_id", "notice_id", "heard_at_us", "deadline_us", "source", "text")


def withdraw(tx: Transaction, node_id: str, notice_id: str) -> None:
    """The notice is no longer in force."""
    where = and_(_notices.node_id == node_id, _notices.notice_id == notice_id)
    tx.conn.execute(update(schema.notices).where(where).values(withdrawn=True))


def _known(conn: Connection, heard: Sequence[Heard]) -> dict[tuple[str, str], Row[Any]]:
    keys = sorted({(notice.node_id, notice.notice_id) for notice in heard})
    if not keys:
        return {}
    nodes = sorted({node for node, _ in keys})
    rows = conn.execute(select(schema.notices).where(_notices.node_id.in_(nodes)))
    return {(row.node_id, row.notice_id): row for row in rows}


def _event(notice: Heard) -> Event:
    words = f"{notice.kind.value} notice heard"
    if notice.deadline_us is not None:
        words += f", {(notice.deadline_us - notice.heard_at_us) / 1e6:.0f} s left"
    if notice.source:
        words += f" ({notice.source})"
    return Event("notice_heard", words, notice.node_id, data={"notice_id": notice.notice_id})
