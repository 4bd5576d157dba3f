"""The costs of a job's checkpoints in addition to its machines: storage, requests and egress.

They are estimated from dated list prices and the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert, select, update

from providers.catalogs.egress import first_tier_prices
from providers.catalogs.storage import storage_prices
from providers.stores.bucket import PART_BYTES
from spotd.domain.job import Job
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.money.report import Item, Kind
from spotd.planner.core.shard_stores import gb_microusd, store_of
from spotd.store import schema
from spotd.store.checkpoint_costs import Window, restores, resumed, storage
from spotd.store.checkpoints import CheckpointRow
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction


@dataclass(frozen=True)
class StorageCost:
    """The cost of a job's checkpoints and data in the month (UTC) that starts at `month_us`, as of
    `at_us`, in micro-USD: requests, storage and egress.

    `microusd_per_h` is the current rate; 0 for a month that is over.
    """

    job_id: str
    month_us: int
    microusd: int
    microusd_per_h: int
    at_us: int


NO_EGRESS = "the cost of transferring {name}'s checkpoints from {place} to {store} is not known"
COMMIT_WRITES = 2  # beside its parts: the manifest, and HEAD


def extras_of(
    job: Job,
    nodes: Sequence[Node],
    checkpoints: Sequence[CheckpointRow],
    market: Market,
    window: Window,
    now_us: int,
) -> tuple[list[Item], list[str]]:
    """Storage, requests and egress of the job's checkpoints in the window, and texts about what is
    unknown. Costs of adjacent windows add up."""
    sized = sorted((row for row in checkpoints if row.bytes), key=lambda row: row.committed_at_us)
    if not sized:
        return [], []
    first = {
        node.generation: node for node in nodes if node.rank == 0 and node.training.claimed_at_us
    }
    items, unknown = storage(job, first, sized, window, now_us)
    items += requests(job, first, sized, market, window)
    more, missing = egress(job, first, sized, market, window)
    back, untold = restores(job, first, sized, market, window)
    return items + more + back, unknown + missing + untold


def egress(
    job: Job,
    first: Mapping[int, Node],
    rows: Sequence[CheckpointRow],
    market: Market,
    window: Window,
) -> tuple[list[Item], list[str]]:
    """The cost of checkpoints leaving their machine's region, once each, at the first tier's price.

    `first` has rank 0 of each generation.
    """
    place = store_of(job.spec, market)
    leaving = market.stores.egress_microusd_per_gb or first_tier_prices()
    totals: dict[tuple[str, str], tuple[float, int]] = {}
    unknown: list[str] = []
    for row in rows:
        node = first.get(row.generation)
        if node is None or row.near_bytes >= row.new_bytes or row.committed_at_us not in window:
            continue
        price = gb_microusd(node.offer, place, leaving)
        where = f"{node.offer.provider}/{node.offer.region}"
        if price is None:
            url = job.spec.checkpoint.store
            unknown.append(NO_EGRESS.format(name=job.name, place=where, store=url))
        elif price:
            gb, cost = totals.get((where, node.offer.cloud), (0.0, 0))
            size_gb = (row.new_bytes - row.near_bytes) / 1e9
            totals[where, node.offer.cloud] = gb + size_gb, cost + round(size_gb * price)
    items = [
        Item.egress(f"checkpoints out of {where}, list price", gb, cost, cloud)
        for (where, cloud), (gb, cost) in totals.items()
    ]
    return items, list(dict.fromkeys(unknown))


def requests(
    job: Job,
    first: Mapping[int, Node],
    rows: Sequence[CheckpointRow],
    market: Market,
    window: Window,
) -> list[Item]:
    """The cost of writing checkpoints and of reading those that generations resumed from.

    One request for each PART_BYTES, at the store that holds the part. Failed or repeated saves,
    listings and verification are not on record and not counted.
    """
    own = store_of(job.spec, market).cloud
    totals: dict[tuple[str, str], tuple[int, int]] = {}

    def count(what: str, cloud: str, times: int) -> None:
        price = storage_prices().get(cloud)
        if price is None or not times:
            return
        each = price.microusd_per_1000_writes if what == "writes" else price.microusd_per_1000_reads
        before, cost = totals.get((what, cloud), (0, 0))
        totals[what, cloud] = before + times, cost + round(times * each / 1000)

    for row in rows:
        if row.committed_at_us in window:
            for cloud, size in _lies(row, first.get(row.generation), own, row.new_bytes):
                count("writes", cloud, -(-size // PART_BYTES))
            count("writes", own, COMMIT_WRITES)
    for row, node in resumed(first, rows):
        if node.training.claimed_at_us in window:
            for cloud, size in _lies(row, first.get(row.generation), own, row.bytes):
                count("reads", cloud, -(-size // PART_BYTES))
    return [
        Item(
            kind=Kind.STORAGE,
            phase="storage",
            what=_about(what, cloud),
            quantity=times,
            unit="Requests",
            cost_microusd=cost,
            cloud=cloud,
        )
        for (what, cloud), (times, cost) in sorted(totals.items())
    ]


def _about(what: str, cloud: str) -> str:
    price = storage_prices()[cloud]
    return f"{what} of checkpoints, {price.storage_class}, list price of {price.dated}"


def _lies(
    row: CheckpointRow, saved_by: Node | None, own: str, size: int
) -> Iterator[tuple[str, int]]:
    """The clouds that store these bytes of the checkpoint, and how many are in each."""
    near = row.near_bytes if saved_by is not None and not saved_by.offer.local else 0
    yield own, size - near
    if saved_by is not None and near:
        yield saved_by.offer.cloud, near


_carriage = schema.carriage.c


class StorageCostRepository(Repository):
    """Costs of checkpoints and data by job and month."""

    @read
    def rows(self, conn: Connection, month_us: int = 0) -> list[StorageCost]:
        """Costs by job and month, of all months or of the one that starts at `month_us`."""
        query = select(schema.carriage).order_by(_carriage.job_id, _carriage.month_us)
        if month_us:
            query = query.where(_carriage.month_us == month_us)
        return [StorageCost(**row) for row in conn.execute(query).mappings()]

    @write
    def record(self, tx: Transaction, row: StorageCost) -> None:
        """Replace the cost of that job and month.

        It counts in the job's spending, its rate in committed use; the job becomes due if the cost
        grew.
        """
        this = (_carriage.job_id == row.job_id) & (_carriage.month_us == row.month_us)
        known = tx.conn.execute(select(_carriage.microusd).where(this)).scalar_one_or_none()
        if row.microusd > (known or 0):
            tx.touch({row.job_id: row.at_us})
        if known is None:
            tx.conn.execute(insert(schema.carriage).values(asdict(row)))
        else:
            tx.conn.execute(update(schema.carriage).where(this).values(asdict(row)))
