"""The costs of storing a job's checkpoints, and of reading them on another machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from providers.catalogs.egress import first_tier_prices
from providers.catalogs.storage import GB, StoragePrice, storage_price_of, storage_prices
from spotd.domain.job import Job
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.units import MONTH_H, US_PER_H
from spotd.money.focus import months
from spotd.money.report import Item, Kind
from spotd.planner.core.shard_stores import StorePlace, gb_microusd, place_of, store_of
from spotd.store.checkpoints import CheckpointRow

NO_STORE_PRICE = "the cost of {name}'s checkpoints in {store} is not known: no price is listed"
NO_NEAR_PRICE = "the cost of {name}'s shards in stores of {cloud} is not known: no price is listed"
NO_WAY_BACK = "the cost of transferring {name}'s checkpoints from {away} to {place} is not known"
Lying = tuple[int, int, int]  # bytes, from when, until when


@dataclass(frozen=True)
class Window:
    """The period of a report, on the daemon's clock."""

    since_us: int
    until_us: int

    def __contains__(self, at_us: int) -> bool:
        return self.since_us <= at_us < self.until_us


def storage(
    job: Job,
    first: Mapping[int, Node],
    rows: Sequence[CheckpointRow],
    window: Window,
    now_us: int,
) -> tuple[list[Item], list[str]]:
    """The cost of storing each checkpoint.

    It is stored from its commit until `keep` newer ones are committed or a user deletes it: the
    part in its machine's region at the list price of that machine's cloud, the rest at that of the
    job's own store. Data that it shares with an earlier one counts for the earlier one as long as
    that is stored, and then here. `first` has rank 0 of each generation.
    """
    url, keep = job.spec.checkpoint.store, job.spec.checkpoint.keep
    own: list[Lying] = []
    near: dict[str, list[Lying]] = {}
    for number, row in enumerate(rows):
        newer = rows[number + keep].committed_at_us if number + keep < len(rows) else now_us
        newer = min(newer, row.removed_at_us or newer)
        node = first.get(row.generation)
        beside = row.near_bytes if node is not None else 0
        own.append((row.new_bytes - beside, row.committed_at_us, newer))
        if row.shared_bytes and number + keep - 1 < len(rows):
            oldest_us = min(rows[number + keep - 1].committed_at_us, newer)
            own.append((row.shared_bytes, oldest_us, newer))
        if node is not None and beside and not node.offer.local:
            lies = (beside, row.committed_at_us, newer)
            near.setdefault(node.offer.cloud, []).append(lies)
    items, unknown = [], []
    price = storage_price_of(url)
    if price is not None:
        items += storage_items(price, "checkpoints", own, place_of(url, {}).cloud, window)
    elif not url.startswith("file:") and _gb_months(own, window.since_us, window.until_us):
        unknown.append(NO_STORE_PRICE.format(name=job.name, store=url))
    for cloud, lying in sorted(near.items()):
        listed = storage_prices().get(cloud)
        if listed is not None:
            items += storage_items(listed, "shards beside the machines", lying, cloud, window)
        elif _gb_months(lying, window.since_us, window.until_us):
            unknown.append(NO_NEAR_PRICE.format(name=job.name, cloud=cloud))
    return items, unknown


def storage_items(
    price: StoragePrice, name: str, lies: Sequence[Lying], cloud: str, window: Window
) -> list[Item]:
    """The cost of bytes stored for given periods.

    Stores bill by the month (UTC), with tiers. Costs of adjacent windows add up: each is the cost
    until its end, less the cost until its start.
    """
    quantity = _gb_months(lies, window.since_us, window.until_us)
    if not quantity:
        return []
    ends = (window.since_us, min(window.until_us, max(end for _, _, end in lies)))
    before, until = (_until(price, lies, at_us) for at_us in ends)
    what = f"{name}, {price.storage_class}, {price.region}, list price of {price.dated}"
    fields = (Kind.STORAGE, "storage", what, quantity, "GB-Months", until - before)
    return [Item(*fields, cloud=cloud)]


def _until(price: StoragePrice, lies: Sequence[Lying], until_us: int) -> int:
    """Micro-USD until `until_us`, month by month."""
    cost = 0
    for month_us, next_us in months(min(start for _, start, _ in lies), until_us):
        cost += price.microusd_per_month(round(_gb_months(lies, month_us, next_us) * GB))
    return cost


def _gb_months(lies: Sequence[Lying], since_us: int, until_us: int) -> float:
    byte_us = sum(
        size * max(0, min(end, until_us) - max(start, since_us)) for size, start, end in lies
    )
    return byte_us / (MONTH_H * US_PER_H) / GB


def restores(
    job: Job,
    first: Mapping[int, Node],
    rows: Sequence[CheckpointRow],
    market: Market,
    window: Window,
) -> tuple[list[Item], list[str]]:
    """The cost of the data that each generation read when it resumed, once.

    That is the newest checkpoint before its claim: the shards in the region of the machine that
    saved them, and the rest from the job's own store, at the first tier's egress price of the cloud
    they leave.
    """
    leaving = market.stores.egress_microusd_per_gb or first_tier_prices()
    totals: dict[str, tuple[float, int]] = {}
    unknown: list[str] = []
    for row, node in resumed(first, rows):
        if node.training.claimed_at_us not in window:
            continue
        for away, size in _parts(job, row, first.get(row.generation), market):
            price = out_microusd(node, away, leaving)
            if price is None:
                place = f"{node.offer.provider}/{node.offer.region}"
                text = f"{away.cloud or 'its store'}/{away.region}".rstrip("/")
                unknown.append(NO_WAY_BACK.format(name=job.name, away=text, place=place))
            elif price and size:
                gb, cost = totals.get(away.cloud, (0.0, 0))
                totals[away.cloud] = gb + size / 1e9, cost + round(size / 1e9 * price)
    items = [
        Item.egress(f"restores out of {cloud}, list price", gb, cost, cloud)
        for cloud, (gb, cost) in sorted(totals.items())
    ]
    return items, list(dict.fromkeys(unknown))


def resumed(
    first: Mapping[int, Node], rows: Sequence[CheckpointRow]
) -> Iterator[tuple[CheckpointRow, Node]]:
    """The checkpoint each generation resumed from, and its node of rank 0.

    After its claim no earlier generation can commit.
    """
    for node in first.values():
        before = [row for row in rows if row.generation < node.generation]
        if before:
            yield max(before, key=lambda one: (one.committed_at_us, one.step)), node


def _parts(
    job: Job, row: CheckpointRow, saved_by: Node | None, market: Market
) -> list[tuple[StorePlace, int]]:
    """Where the checkpoint's bytes are stored, and how many."""
    own = [(store_of(job.spec, market), row.bytes - row.near_bytes)]
    if saved_by is None or not row.near_bytes:
        return own if own[0][1] else []
    offer = saved_by.offer
    near = StorePlace("here" if offer.local else offer.cloud, offer.region)
    return [(near, row.near_bytes), *(own if own[0][1] else [])]


def out_microusd(node: Node, away: StorePlace, leaving: Mapping[str, int]) -> int | None:
    """The price of moving a GB from `away` to the node; None if unknown."""
    here = gb_microusd(node.offer, away, {node.offer.cloud: 1})
    if here == 1:  # another cloud's: that one is paid
        return leaving.get(away.cloud)
    return here
