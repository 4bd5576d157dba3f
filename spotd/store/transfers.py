"""Data transferred for jobs: copies made ahead of them, and reads by their nodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from sqlalchemy import Connection, insert, select, update

from spotd.store import schema
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction

MOST_BYTES = 1 << 60  # that a node is believed of a month


@dataclass(frozen=True)
class DataTransfer:
    """Data of a job transferred in the month (UTC) that starts at `month_us`.

    Without a node: copied by the control box to `url` ahead of the job; egress and request costs,
    in micro-USD, are recorded before they arise. The copy exists from `began_at_us` until
    `gone_at_us` (0: still), and is complete since `staged_at_us`. With a node: bytes that the node
    measured reading over its mount of `url`, or copying from it.
    """

    job_id: str
    url: str
    node_id: str
    month_us: int
    bytes: int = 0
    egress_microusd: int = 0
    requests_microusd: int = 0
    began_at_us: int = 0
    staged_at_us: int = 0
    gone_at_us: int = 0

    def plus(self, more: DataTransfer) -> DataTransfer:
        """The sum of two transfers of the same key.

        A copy that was deleted and made again counts its old size too: the cost is never too low.
        """
        return replace(
            self,
            bytes=min(self.bytes + more.bytes, MOST_BYTES),
            egress_microusd=self.egress_microusd + more.egress_microusd,
            requests_microusd=self.requests_microusd + more.requests_microusd,
            staged_at_us=self.staged_at_us or more.staged_at_us,
            gone_at_us=more.gone_at_us,
        )


_freight = schema.freight.c
_ORDER = (_freight.job_id, _freight.url, _freight.node_id, _freight.month_us)


class TransferRepository(Repository):
    """Data transferred for jobs, by URL, node and month."""

    @read
    def rows(self, conn: Connection, job_id: str = "") -> list[DataTransfer]:
        """Transfers of one job or of all, by job, URL, node and month."""
        query = select(schema.freight).order_by(*_ORDER)
        if job_id:
            query = query.where(_freight.job_id == job_id)
        return [DataTransfer(**row) for row in conn.execute(query).mappings()]

    @write
    def add(self, tx: Transaction, row: DataTransfer) -> None:
        """Add to what is known of that job, URL, node and month."""
        add_shipment(tx, row)

    @write
    def end(self, tx: Transaction, job_id: str, url: str, at_us: int) -> None:
        """Record that the copy the control box made at `url` is deleted."""
        these = (_freight.job_id == job_id) & (_freight.url == url) & (_freight.node_id == "")
        where = these & (_freight.gone_at_us == 0)
        tx.conn.execute(update(schema.freight).where(where).values(gone_at_us=at_us))


def add_shipment(tx: Transaction, row: DataTransfer) -> None:
    """Add to what is known of that job, URL, node and month."""
    this = (
        (_freight.job_id == row.job_id)
        & (_freight.url == row.url)
        & (_freight.node_id == row.node_id)
        & (_freight.month_us == row.month_us)
    )
    known = tx.conn.execute(select(schema.freight).where(this)).mappings().one_or_none()
    if known is None:
        tx.conn.execute(insert(schema.freight).values(asdict(row)))
    else:
        tx.conn.execute(
            update(schema.freight).where(this).values(asdict(DataTransfer(**known).plus(row)))
        )
