"""The terms for a program that chooses its own checkpoint interval."""

from __future__ import annotations

from providers.catalogs.egress import first_tier_prices
from providers.catalogs.storage import storage_prices
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.planner.core.checkpoint_interval import WITHIN_S, CheckpointTerms, terms_of
from spotd.planner.core.shard_stores import StorePlace, gb_microusd
from spotd.store.interface import Store


def terms_for(
    job: Job, node: Node, store: Store, place: StorePlace, now_us: int
) -> CheckpointTerms:
    """`place` is where the machine's shards go. Raises StoreError."""
    lives = store.node_history.observed_lifetimes(now_us - int(WITHIN_S * S))
    gb = gb_microusd(node.offer, place, first_tier_prices())
    storage_price = storage_prices().get(place.cloud)
    put = storage_price.microusd_per_1000_writes / 1000 if storage_price else None
    return terms_of(node.offer, lives, job.spec.resources.num_nodes, gb, put)
