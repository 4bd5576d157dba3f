"""What a program goes by that chooses its pauses between saves itself, at its machine's start."""

from __future__ import annotations

from providers.egress import first_prices
from providers.storage import storage_prices
from spotd.decide.cadence import WITHIN_S, Terms, terms_of
from spotd.decide.carriage import Place, gb_microusd
from spotd.model import Job, Node, S
from spotd.store.base import Store


def terms_for(job: Job, node: Node, store: Store, place: Place, now_us: int) -> Terms:
    """`place` is where the machine's shards go. Raises StoreError."""
    lives = store.lives(now_us - int(WITHIN_S * S))
    gb = gb_microusd(node.offer, place, first_prices())
    kept = storage_prices().get(place.cloud)
    put = kept.microusd_per_1000_writes / 1000 if kept else None
    return terms_of(node.offer, lives, job.spec.num_nodes, gb, put)
