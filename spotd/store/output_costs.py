"""The costs of a job's outputs: storage, requests and egress, by dated list prices."""

from __future__ import annotations

from collections.abc import Sequence

from providers.catalogs.egress import first_tier_prices
from providers.catalogs.storage import storage_price_of, storage_prices
from providers.stores.bucket import PART_BYTES
from spotd.domain.job import Job
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.money.report import Item, Kind
from spotd.planner.core.shard_stores import gb_microusd, place_of, store_of
from spotd.store.checkpoint_costs import Window, storage_items
from spotd.store.outputs import StoredOutput

NO_PRICE = "the cost of {name}'s outputs in {store} is not known: no price is listed"
NO_EGRESS = "the cost of transferring {name}'s outputs from {place} to {store} is not known"


def output_costs(
    job: Job,
    nodes: Sequence[Node],
    uploads: Sequence[StoredOutput],
    market: Market,
    window: Window,
    now_us: int,
) -> tuple[list[Item], list[str]]:
    """Costs of uploaded outputs in the window, and texts about what is unknown.

    They stay in the job's own store until `spotctl outputs rm`. spotd does not notice if a user
    deletes them there by other means. Costs of adjacent windows add up.
    """
    stored = [row for row in uploads if row.new_bytes and row.stored_at_us < window.until_us]
    if not stored:
        return [], []
    url, items, unknown = job.spec.checkpoint.store, list[Item](), list[str]()
    cloud = place_of(url, {}).cloud
    price = storage_price_of(url)
    if price is not None:
        lies = [(row.new_bytes, row.stored_at_us, row.removed_at_us or now_us) for row in stored]
        items += storage_items(price, "outputs", lies, cloud, window)
    elif not url.startswith("file:"):
        unknown.append(NO_PRICE.format(name=job.name, store=url))
    new = [row for row in stored if row.stored_at_us >= window.since_us]
    items += _requests(new, cloud)
    egress, missing = _egress(job, nodes, new, market)
    return items + egress, unknown + missing


def _requests(new: Sequence[StoredOutput], cloud: str) -> list[Item]:
    """The cost of writing: one request for each PART_BYTES, and at least one for each file."""
    price = storage_prices().get(cloud)
    if price is None or not new:
        return []
    writes = sum(max(row.files, -(-row.new_bytes // PART_BYTES)) + 1 for row in new)
    about = f"writes of outputs, {price.storage_class}, list price of {price.dated}"
    cost = round(writes * price.microusd_per_1000_writes / 1000)
    return [Item(Kind.STORAGE, "storage", about, writes, "Requests", cost, cloud=cloud)]


def _egress(
    job: Job, nodes: Sequence[Node], new: Sequence[StoredOutput], market: Market
) -> tuple[list[Item], list[str]]:
    """The cost of outputs leaving their machine's region, at the first tier's price."""
    by_id = {node.id: node for node in nodes}
    place = store_of(job.spec, market)
    leaving = market.stores.egress_microusd_per_gb or first_tier_prices()
    items: list[Item] = []
    unknown: list[str] = []
    for row in new:
        node = by_id.get(row.node_id)
        if node is None:
            continue
        where = f"{node.offer.provider}/{node.offer.region}"
        microusd = gb_microusd(node.offer, place, leaving)
        if microusd is None:
            url = job.spec.checkpoint.store
            unknown.append(NO_EGRESS.format(name=job.name, place=where, store=url))
        elif microusd:
            gb = row.new_bytes / 1e9
            what, cost = f"outputs out of {where}, list price", round(gb * microusd)
            items.append(Item.egress(what, gb, cost, node.offer.cloud))
    return items, list(dict.fromkeys(unknown))
