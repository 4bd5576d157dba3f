"""How much of each node's log is in the deployment's store."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select, update

from spotd.store import schema
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction

_offsets = schema.log_offsets.c


class LogRepository(Repository):
    """How much of each node's log is stored."""

    @read
    def offsets(self, conn: Connection, job_id: str) -> dict[tuple[int, int, str], int]:
        """(generation, rank, stream) -> bytes already in the deployment's store.

        Candidates that were never chosen have logs of their own: the furthest of one generation and
        rank counts.
        """
        nodes = schema.nodes.c
        query = (
            select(nodes.generation, nodes.rank, _offsets.stream, _offsets.stored_bytes)
            .join_from(schema.log_offsets, schema.nodes, nodes.id == _offsets.node_id)
            .where(nodes.job_id == job_id)
            .order_by(_offsets.stored_bytes)
        )
        return {
            (row.generation, row.rank, row.stream): row.stored_bytes for row in conn.execute(query)
        }

    @write
    def record_offset(self, tx: Transaction, node_id: str, stream: str, offset: int) -> None:
        """Record how much of a node's stream is stored. It never decreases; unknown nodes are
        ignored."""
        table = schema.log_offsets
        where = (_offsets.node_id == node_id) & (_offsets.stream == stream)
        known = tx.conn.execute(select(_offsets.stored_bytes).where(where)).scalar_one_or_none()
        if known is None:
            row: dict[str, Any] = {"node_id": node_id, "stream": stream, "stored_bytes": offset}
            nodes = schema.nodes.c
            exists = select(nodes.id).where(nodes.id == node_id)
            if tx.conn.execute(exists).scalar_one_or_none() is not None:
                tx.conn.execute(insert(table).values(**row))
        elif known < offset:
            tx.conn.execute(update(table).where(where).values(stored_bytes=offset))
