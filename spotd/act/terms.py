"""What a program goes by that chooses its pauses between saves itself, at its machine's start."""

from __future__ import annotations

from collections.abc import Mapping

from providers.egress import first_prices
from providers.storage import storage_prices
from spotd.decide.cadence import WITHIN_S, Terms, terms_of
from spotd.decide.carriage import gb_microusd, place_of
from spotd.model import Job, Node, S
from spotd.store.base import Store


def terms_for(job: Job, node: Node, store: Store, options: Mapping[str, str], now_us: int) -> Terms:
    """`options` are those of the job's store, as the machine gets them. Raises StoreError."""
    lives = store.lives(now_us - int(WITHIN_S * S))
    place = place_of(job.spec.checkpoint.store, options)
    gb = gb_microusd(node.offer, place, first_prices())
    kept = storage_prices().get(place.cloud)
    put = kept.microusd_per_1000_writes / 1000 if kept else None
    return terms_of(node.offer, lives, job.spec.num_nodes, gb, put)
