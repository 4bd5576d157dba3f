"""Notices: on their node, whoever told us first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spotd.domain.node import Node, NoticeRecord
from spotd.store.columns import clean
from spotd.store.notices import NoticeObservation, after, event_of
from tests.sim.memory.transaction import Transaction


def record(tx: Transaction, heard: Sequence[NoticeObservation]) -> None:
    """Store what is new."""
    for notice in heard:
        node = tx.tables.nodes[notice.node_id]
        now, is_news = after(_known(node, notice.notice_id), notice)
        _keep(tx, node, replace(now, source=clean(now.source)))
        if is_news:
            tx.event(notice.job_id, event_of(notice), notice.heard_at_us)


def withdraw(tx: Transaction, node_id: str, notice_id: str) -> None:
    """The notice is no longer in force."""
    node = tx.tables.nodes[node_id]
    known = _known(node, notice_id)
    if known is not None:
        _keep(tx, node, replace(known, withdrawn=True))


def _known(node: Node, notice_id: str) -> NoticeRecord | None:
    return next((notice for notice in node.notices if notice.notice_id == notice_id), None)


def _keep(tx: Transaction, node: Node, now: NoticeRecord) -> None:
    """In the order in which they were heard."""
    others = (notice for notice in node.notices if notice.notice_id != now.notice_id)
    ordered = sorted((*others, now), key=lambda notice: (notice.heard_at_us, notice.notice_id))
    tx.change_node(node, notices=tuple(ordered))
