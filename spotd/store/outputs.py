"""The files that jobs leave behind: one row for each upload of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, bindparam, insert, select

from spotd.store import schema
from spotd.store.session import Repository, read
from spotd.store.transaction import Transaction

OUTPUTS_REMOVED = "outputs_removed"  # the kind of the event that says so; it is never pruned
OUTPUTS_SKIPPED = "outputs_skipped"  # the kind of the event that leaves files on the machines


@dataclass(frozen=True)
class StoredOutput:
    """One upload: the key of its manifest in the job's store, and what the manifest names.

    `new_bytes` is the part of `bytes` that no earlier upload of the job had stored. `text` names
    the missing files, with reasons. `removed_at_us`, by the job's events, is when its files were
    deleted; 0: they are there.
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
    removed_at_us: int = 0


_row, _events = schema.outputs.c, schema.events.c
_REMOVED = (
    select(_events.at_us)
    .where(_events.job_id == bindparam("job"), _events.kind == OUTPUTS_REMOVED)
    .order_by(_events.at_us)
)


def _first_after(stored_at_us: int, removed_us: Sequence[int]) -> int:
    return next((at_us for at_us in removed_us if at_us >= stored_at_us), 0)


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
        removed_us = conn.execute(_REMOVED, {"job": job_id}).scalars().all()
        return [
            StoredOutput(**row, removed_at_us=_first_after(row["stored_at_us"], removed_us))
            for row in conn.execute(query).mappings()
        ]


def record(tx: Transaction, row: StoredOutput) -> None:
    """Record an upload; the same one again changes nothing."""
    this = (_row.job_id == row.job_id) & (_row.manifest == row.manifest)
    if tx.conn.execute(select(_row.manifest).where(this)).first() is None:
        values = asdict(row)
        del values["removed_at_us"]  # of the events
        tx.conn.execute(insert(schema.outputs).values(values))
