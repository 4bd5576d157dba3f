"""What a job's checkpoints cost beside its machines: to be written and read, to lie there, and to
leave clouds. By dated list prices, of what is on record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from providers.catalogs.egress import first_prices
from providers.catalogs.storage import storage_prices
from providers.stores.bucket import PART_BYTES
from spotd.domain.job import Job
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.money.report import Item, Kind
from spotd.planner.core.shard_stores import gb_microusd, store_of
from spotd.store.checkpoint_costs import Window, restores, resumed, storage
from spotd.store.records import CheckpointRow

NO_EGRESS = "what {name}'s checkpoints cost on their way from {place} to {store} is not known"
COMMIT_WRITES = 2  # beside its parts: the manifest, and HEAD


def extras_of(
    job: Job,
    nodes: Sequence[Node],
    checkpoints: Sequence[CheckpointRow],
    market: Market,
    window: Window,
    now_us: int,
) -> tuple[list[Item], list[str]]:
    """Storage, requests and egress of the job's checkpoints in that time, and what is not known of
    them. Those of times that follow one another add up."""
    sized = sorted((row for row in checkpoints if row.bytes), key=lambda row: row.committed_at_us)
    if not sized:
        return [], []
    first = {node.generation: node for node in nodes if node.rank == 0 and node.claimed_at_us}
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
    """Every byte of a checkpoint that does not stay in its machine's region leaves it once, by the
    first tier's price. `first` has rank 0 of each generation."""
    place = store_of(job.spec, market)
    leaving = market.leaving or first_prices()
    found: dict[tuple[str, str], tuple[float, int]] = {}
    unknown: list[str] = []
    for row in rows:
        node = first.get(row.generation)
        if (
            node is None
            or row.near_bytes >= row.bytes
            or not window.since_us <= row.committed_at_us < window.until_us
        ):
            continue
        price = gb_microusd(node.offer, place, leaving)
        where = f"{node.offer.provider}/{node.offer.region}"
        if price is None:
            url = job.spec.checkpoint.store
            unknown.append(NO_EGRESS.format(name=job.name, place=where, store=url))
        elif price:
            gb, cost = found.get((where, node.offer.cloud), (0.0, 0))
            size_gb = (row.bytes - row.near_bytes) / 1e9
            found[where, node.offer.cloud] = gb + size_gb, cost + round(size_gb * price)
    items = [
        Item(
            kind=Kind.EGRESS,
            phase="egress",
            what=f"checkpoints out of {where}, list price",
            quantity=gb,
            unit="GB",
            cost_microusd=cost,
            cloud=cloud,
        )
        for (where, cloud), (gb, cost) in found.items()
    ]
    return items, list(dict.fromkeys(unknown))


def requests(
    job: Job,
    first: Mapping[int, Node],
    rows: Sequence[CheckpointRow],
    market: Market,
    window: Window,
) -> list[Item]:
    """Writes of what was saved, and reads of what a generation resumed from: one for each part of
    PART_BYTES, at the store that the part is in. A save that failed or was tried again is not on
    record, nor is what was listed and verified."""
    own = store_of(job.spec, market).cloud
    found: dict[tuple[str, str], tuple[int, int]] = {}

    def count(what: str, cloud: str, times: int) -> None:
        price = storage_prices().get(cloud)
        if price is None or not times:
            return
        each = price.microusd_per_1000_writes if what == "writes" else price.microusd_per_1000_reads
        before, cost = found.get((what, cloud), (0, 0))
        found[what, cloud] = before + times, cost + round(times * each / 1000)

    for row in rows:
        if window.since_us <= row.committed_at_us < window.until_us:
            for cloud, size in _lies(row, first.get(row.generation), own):
                count("writes", cloud, -(-size // PART_BYTES))
            count("writes", own, COMMIT_WRITES)
    for row, node in resumed(first, rows):
        if window.since_us <= node.claimed_at_us < window.until_us:
            for cloud, size in _lies(row, first.get(row.generation), own):
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
        for (what, cloud), (times, cost) in sorted(found.items())
    ]


def _about(what: str, cloud: str) -> str:
    price = storage_prices()[cloud]
    return f"{what} of checkpoints, {price.storage_class}, list price of {price.dated}"


def _lies(row: CheckpointRow, saved_by: Node | None, own: str) -> Iterator[tuple[str, int]]:
    """The clouds that have the checkpoint, and how many bytes of it."""
    near = row.near_bytes if saved_by is not None and not saved_by.offer.local else 0
    yield own, row.bytes - near
    if saved_by is not None and near:
        yield saved_by.offer.cloud, near
