"""What it costs to bring checkpoints from a machine to their store."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from providers.base import Offer
from spotd.decide.cadence import mtbf_s
from spotd.model import JobSpec, Market

_CLOUDS = {"s3": "aws", "gs": "gcp", "az": "azure"}
HERE = "here"  # a folder: whatever carries bytes there, no cloud counts them
# Of a job that chooses its own pauses, before it has measured anything: what a save takes of
# training where staging overlaps with it, and the bounds of trainer/hook/spotd_hook/cadence.py.
STALL_S, LEAST_S, MOST_S = 0.5, 30.0, 3600.0
SLACK = 3.0


class Place(NamedTuple):
    """Where a store is. `cloud` "" is none of the clouds whose prices are known: to it, bytes leave
    every cloud. `region` "" is not known."""

    cloud: str
    region: str = ""


def place_of(url: str, options: Mapping[str, str]) -> Place:
    """Of a store's URL and its options (`endpoint`, `region`)."""
    scheme = url.partition(":")[0]
    if scheme == "file":
        return Place(HERE)
    if options.get("endpoint"):
        return Place("")
    return Place(_CLOUDS.get(scheme, ""), options.get("region", ""))


def gb_microusd(offer: Offer, store: Place, leaving: Mapping[str, int]) -> int | None:
    """Of a GB from the offer's machine to `store`; None where no price is known, as between two
    regions of a cloud. `leaving` is what each cloud takes for a GB that leaves it."""
    if offer.local or store.cloud == HERE:
        return 0
    if store.cloud != offer.cloud:
        return leaving.get(offer.cloud)
    return 0 if store.region == offer.region else None


def egress_microusd_per_h(offer: Offer, spec: JobSpec, market: Market) -> int | None:
    """What the job's saves cost an hour there for bytes that leave; None where that is not known:
    the price, the size of a save, or how often there is one."""
    saves = spec.checkpoint
    if saves.engine == "none":
        return None
    gb = gb_microusd(offer, store_of(spec, market), market.leaving)
    if not gb:
        return gb
    each_h = saves_per_h(offer, spec, market)
    return round(saves.size_bytes / 1e9 * gb * each_h) if each_h else None


def saves_per_h(offer: Offer, spec: JobSpec, market: Market) -> float:
    """How often the job saves there; 0 where that is not known, or not how large a save is."""
    size_gb = spec.checkpoint.size_bytes / 1e9
    gb = gb_microusd(offer, store_of(spec, market), market.leaving) or 0
    pause_s = _pause_s(offer, spec, size_gb * gb)
    return 3600 / pause_s if size_gb and pause_s else 0.0


def longest_pause_s(offer: Offer, spec: JobSpec, market: Market) -> float:
    """What may lie between two saves there before something is wrong. Of a job that chooses by
    itself, SLACK of what it is expected to choose: its saves may stall training for longer than is
    thought here. By steps alone, and where saves cost money, the most that there is."""
    saves = spec.checkpoint
    if not saves.auto:
        return saves.every_s or MOST_S
    if gb_microusd(offer, store_of(spec, market), market.leaving) != 0:
        return MOST_S
    return min(max(saves.every_s, SLACK * _pause_s(offer, spec, 0.0)), MOST_S)


def store_of(spec: JobSpec, market: Market) -> Place:
    """Where the job saves, by the closest of the stores that are configured."""
    url = spec.checkpoint.store
    under = [base for base in market.places if url == base or url.startswith(f"{base}/")]
    return Place(*market.places[max(under, key=len)]) if under else place_of(url, {})


def _pause_s(offer: Offer, spec: JobSpec, save_microusd: float) -> float:
    """Between two saves; 0 where it is not known, as by steps alone."""
    if not spec.checkpoint.auto:
        return spec.checkpoint.every_s
    second_microusd = offer.price_microusd_per_h * spec.num_nodes / 3600
    costs_s = save_microusd / second_microusd if second_microusd else 0.0
    young_s = math.sqrt(2 * (STALL_S + costs_s) * mtbf_s(offer, (), spec.num_nodes))
    return min(max(young_s, LEAST_S), MOST_S)
