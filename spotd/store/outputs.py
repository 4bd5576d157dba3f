"""The files that jobs leave behind: one row for each upload of a machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert, select

from spotd.store import schema
from spotd.store.session import Repository, read
from spotd.store.transaction import Transaction


@dataclass(frozen=True)
class StoredOutput:
    """One upload: the key of its manifest in the job's store, and what the manifest names.

    `new_bytes` is the part of `bytes` that no earlier upload of the job had stored. `text` names
    the missing files, with reasons.
    """

    job_id: str
    manifest: str
    digest: str
    generation: int
    rank: int
    node_id: str
    stored_at_us: int
    files: int
    bytes: int
    new_bytes: int
    text: str = ""


_row = schema.outputs.c


class OutputRepository(Repository):
    """Uploads of jobs' outputs, as their nodes reported them."""

    @read
    def rows(self, conn: Connection, job_id: str) -> list[StoredOutput]:
        """The job's uploads, oldest first."""
        query = (
            select(schema.outputs)
            .where(_row.job_id == job_id)
            .order_by(_row.stored_at_us, _row.generation, _row.rank, _row.manifest)
        )
        return [StoredOutput(**row) for row in conn.execute(query).mappings()]


def record(tx: Transaction, row: StoredOutput) -> None:
    """Record an upload; the same one again changes nothing."""
    this = (_row.job_id == row.job_id) & (_row.manifest == row.manifest)
    if tx.conn.execute(select(_row.manifest).where(this)).first() is None:
        tx.conn.execute(insert(schema.outputs).values(asdict(row)))
