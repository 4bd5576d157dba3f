"""Committed checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from spotd.store import schema
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction


@dataclass(frozen=True)
class CheckpointRow:
    """One committed checkpoint as reported by its node."""

    job_id: str
    generation: int
    step: int
    manifest: str
    bytes: int
    trigger: str
    released: bool
    final: bool
    committed_at_us: int
    stage_s: float
    write_s: float
    near_bytes: int = 0  # of `bytes`, what is in stores of its machines' own regions
    removed_at_us: int = 0  # by a person; 0: it was not
    shared_bytes: int = 0  # of `bytes`, what an earlier checkpoint had uploaded

    @property
    def new_bytes(self) -> int:
        """Number of bytes that this checkpoint uploaded."""
        return self.bytes - self.shared_bytes


class CheckpointRepository(Repository):
    """Committed checkpoints, as their nodes reported them."""

    @write
    def record_removed(self, tx: Transaction, job_id: str, manifest: str, at_us: int) -> None:
        """Record that a person deleted that checkpoint: it costs nothing from now on."""
        row = schema.checkpoints.c
        this = (row.job_id == job_id) & (row.manifest == manifest) & (row.removed_at_us == 0)
        tx.conn.execute(update(schema.checkpoints).where(this).values(removed_at_us=at_us))

    @read
    def rows(self, conn: Connection, job_id: str) -> list[CheckpointRow]:
        """The job's committed checkpoints, oldest first."""
        table = schema.checkpoints
        query = (
            select(table)
            .where(table.c.job_id == job_id)
            .order_by(table.c.committed_at_us, table.c.generation, table.c.step)
        )
        names = CheckpointRow.__dataclass_fields__
        return [
            CheckpointRow(**{n: row[n] for n in names}) for row in conn.execute(query).mappings()
        ]
