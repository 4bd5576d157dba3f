"""The costs of copying a job's data ahead of it, of storing the copies, and of reading from other
clouds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from providers.catalogs.egress import first_tier_prices
from providers.catalogs.storage import GB, storage_prices
from spotd.domain.job import Job
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.money.report import Item, Kind
from spotd.planner.core.shard_stores import HERE, place_among
from spotd.store.checkpoint_costs import Lying, Window, out_microusd, storage_items
from spotd.store.transfers import DataTransfer

NO_COPY_PRICE = "the cost of {name}'s data in {url} is not known: no price is listed"
NO_READ_PRICE = (
    "what {gb:,.4g} GB cost that {name} read or copied of {url} from {place} is not known: no "
    "price is listed"
)


def freight_of(
    job: Job,
    nodes: Sequence[Node],
    rows: Sequence[DataTransfer],
    market: Market,
    window: Window,
    now_us: int,
) -> tuple[list[Item], list[str]]:
    """The costs within the window, and texts about what is unknown.

    Egress and requests of a month count when they started in the window.
    """
    brought = [row for row in rows if not row.node_id]
    items, unknown = _lying(job, brought, market, window, now_us)
    for row in brought:
        if row.began_at_us not in window:
            continue
        gb, cloud = row.bytes / 1e9, place_among(row.url, market.stores.places).cloud
        what = f"data copied ahead to {row.url}, list price"
        if row.egress_microusd:
            items.append(Item.egress(what, gb, row.egress_microusd, cloud))
        if row.requests_microusd:
            item = Item(
                kind=Kind.STORAGE,
                phase="storage",
                what=f"requests of {what}",
                quantity=gb,
                unit="GB",
                cost_microusd=row.requests_microusd,
                cloud=cloud,
            )
            items.append(item)
    read = [row for row in rows if row.node_id]
    more, missing = _read(job, {node.id: node for node in nodes}, read, market, window)
    return items + more, unknown + missing


def paid_by_copy(rows: Iterable[DataTransfer], market: Market) -> dict[str, int]:
    """The cost of each copy that the control box made, in micro-USD: egress, requests, and one
    month of storage, which the cap for prefetching includes from the start."""
    paid: dict[str, int] = {}
    for row in rows:
        if not row.node_id:
            cost = row.egress_microusd + row.requests_microusd
            cost += month_microusd(row.url, row.bytes, market)
            paid[row.url] = paid.get(row.url, 0) + cost
    return paid


def month_microusd(url: str, size: int, market: Market) -> int:
    """The cost of storing `size` bytes for a month at the first tier's price, rounded up; 0 if no
    price is listed."""
    price = storage_prices().get(place_among(url, market.stores.places).cloud)
    return math.ceil(size / GB * price.tiers[0][1]) if price else 0


def _lying(
    job: Job, rows: Sequence[DataTransfer], market: Market, window: Window, now_us: int
) -> tuple[list[Item], list[str]]:
    lies: dict[str, list[Lying]] = {}
    items, unknown = [], []
    for row in rows:
        cloud = place_among(row.url, market.stores.places).cloud
        if cloud in storage_prices():
            lie = (row.bytes, row.began_at_us, row.gone_at_us or now_us)
            lies.setdefault(cloud, []).append(lie)
        elif cloud != HERE:
            unknown.append(NO_COPY_PRICE.format(name=job.name, url=row.url))
    for cloud, lying in sorted(lies.items()):
        items += storage_items(storage_prices()[cloud], "copies of data sets", lying, cloud, window)
    return items, list(dict.fromkeys(unknown))


def _read(
    job: Job,
    nodes: Mapping[str, Node],
    rows: Sequence[DataTransfer],
    market: Market,
    window: Window,
) -> tuple[list[Item], list[str]]:
    """Costs of reading over mounts.

    A row with a data set's name was mounted from its region's copy: no egress. A configured price
    per GB of a data set replaces the list price.
    """
    leaving = market.stores.egress_microusd_per_gb or first_tier_prices()
    datasets = market.stores.datasets.values()
    configured = {dataset.url: dataset.microusd_per_gb for dataset in datasets}
    totals: dict[tuple[str, str], tuple[float, int]] = {}
    unknown: list[str] = []
    for row in rows:
        node = nodes.get(row.node_id)
        if node is None or row.began_at_us not in window or row.url.startswith("dataset://"):
            continue
        at, gb = place_among(row.url, market.stores.places), row.bytes / 1e9
        price, by = out_microusd(node, at, leaving), "list price"
        if price != 0 and configured.get(row.url) is not None:
            price, by = configured[row.url], "usd_per_gb"
        if price is None and gb:
            place = f"{node.offer.provider}/{node.offer.region}"
            fields = {"name": job.name, "url": row.url, "place": place, "gb": gb}
            unknown.append(NO_READ_PRICE.format(**fields))
        elif price:
            before, cost = totals.get((at.cloud, by), (0.0, 0))
            totals[at.cloud, by] = before + gb, cost + round(gb * price)
    items = []
    for (cloud, by), (gb, cost) in sorted(totals.items()):
        what = f"data that machines read out of {cloud or 'elsewhere'}, {by}"
        items.append(Item.egress(what, gb, cost, cloud))
    return items, list(dict.fromkeys(unknown))
