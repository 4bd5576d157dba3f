"""Choose the store of a machine's checkpoints, and compute its cost.

HEAD and manifests are in the job's one authority store. Shards are in a store of the machine's own
region if the job may use one there, so that bytes cross clouds only when the job moves. The same
applies to data sets: they come from the region's own copy, or from another region.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from providers.base import Offer
from providers.clouds import CLOUD_OF_SCHEME
from spotd.domain.datasets import DataSet
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.domain.units import MONTH_H
from spotd.planner.core.checkpoint_interval import mtbf_s
from spotd.wire import Bucket

HERE = "here"  # a folder: whatever carries bytes there, no cloud counts them
# Of a job that chooses its own pauses, before it has measured anything: what a save takes of
# training where staging overlaps with it, and the bounds of trainer/hook/spotd_hook/cadence.py.
STALL_S, LEAST_S, MOST_S = 0.5, 30.0, 3600.0
SLACK = 3.0
PART_BYTES = 16 << 20  # of a write, as providers/stores/bucket.py cuts what it sends
GIB = 1 << 30


class StorePlace(NamedTuple):
    """Where a store is.

    `cloud` is "" if its prices are unknown: bytes to it leave every cloud. `region` is "" if
    unknown. `zone` is set for a folder that only machines of that zone can mount.
    """

    cloud: str
    region: str = ""
    zone: str = ""

    def beside(self, offer: Offer) -> bool:
        """Return whether the offer's machine is in the store's region."""
        return (self.cloud, self.region) == (offer.cloud or offer.provider, offer.region)


def place_of(
    url: str, options: Mapping[str, str], cloud: str = "", region: str = "", zone: str = ""
) -> StorePlace:
    """Return the place of a store from its URL and options (`endpoint`, `region`).

    Explicit `cloud`, `region` and `zone` take precedence.
    """
    scheme = url.partition(":")[0]
    if scheme == "file" and not cloud:
        return StorePlace(HERE)
    if options.get("endpoint") and not cloud:
        return StorePlace("", region)
    known = CLOUD_OF_SCHEME.get(scheme)
    return StorePlace(
        cloud or (known.name if known else ""), region or options.get("region", ""), zone
    )


def gb_microusd(offer: Offer, store: StorePlace, leaving: Mapping[str, int]) -> int | None:
    """Return the micro-USD of a GB from the offer's machine to `store`; None if unknown.

    Between two regions of one cloud no price is known. `leaving` is each cloud's price of a GB that
    leaves it.
    """
    if offer.local or store.cloud == HERE:
        return 0
    if store.cloud != offer.cloud:
        return leaving.get(offer.cloud)
    return 0 if store.region == offer.region else None


def egress_microusd_per_h(offer: Offer, spec: JobSpec, market: Market) -> int | None:
    """Return the hourly cost of the checkpoint bytes that leave the cloud; None if unknown.

    It is unknown without a price, the size of a save, or its interval. For a job with shard stores
    the way back is included: each expected preemption moves one checkpoint out of the store, as if
    the next machine were always in another cloud.
    """
    saves = spec.checkpoint
    if saves.engine == "none":
        return None
    place = goes_to(offer, spec, market)
    gb = gb_microusd(offer, place, market.stores.egress_microusd_per_gb)
    if gb is None:
        return None
    back = 0.0
    if may_have_shards(spec, market.stores.shards) and not offer.local and place.cloud != HERE:
        if place.cloud not in market.stores.egress_microusd_per_gb or not saves.size_bytes:
            return None
        lives_h = mtbf_s(offer, (), spec.resources.num_nodes) / 3600
        back = saves.size_bytes / 1e9 * market.stores.egress_microusd_per_gb[place.cloud] / lives_h
    if not gb:
        return round(back)
    each_h = saves_per_h(offer, spec, market)
    return round(saves.size_bytes / 1e9 * gb * each_h + back) if each_h else None


def requests_microusd_per_h(offer: Offer, spec: JobSpec, market: Market) -> int | None:
    """Return the hourly cost of the store requests of saves, in parts of PART_BYTES; None if
    unknown.

    `storage_prices` of the market's stores are, by cloud, the micro-USD of a GiB stored for a
    month and of a thousand writes.
    """
    saves = spec.checkpoint
    if saves.engine == "none" or not saves.size_bytes:
        return None
    price = market.stores.storage_prices.get(goes_to(offer, spec, market).cloud)
    each_h = saves_per_h(offer, spec, market)
    if price is None or not each_h:
        return None
    return round(-(-saves.size_bytes // PART_BYTES) * each_h * price[1] / 1000)


def carried_microusd_per_h(offer: Offer, spec: JobSpec, market: Market) -> int:
    """Return the known hourly cost of checkpoints: egress, requests, storage of `keep` of them."""
    saves = spec.checkpoint
    price = market.stores.storage_prices.get(goes_to(offer, spec, market).cloud)
    lies = 0
    if price is not None and saves.engine != "none":
        lies = round(saves.size_bytes * saves.keep / GIB * price[0] / MONTH_H)
    known = (f(offer, spec, market) or 0 for f in (egress_microusd_per_h, requests_microusd_per_h))
    return sum(known) + lies


def saves_per_h(offer: Offer, spec: JobSpec, market: Market) -> float:
    """Return how often the job saves there; 0 if that or the size of a save is unknown."""
    size_gb = spec.checkpoint.size_bytes / 1e9
    gb = gb_microusd(offer, goes_to(offer, spec, market), market.stores.egress_microusd_per_gb) or 0
    pause_s = _pause_s(offer, spec, size_gb * gb)
    return 3600 / pause_s if size_gb and pause_s else 0.0


def longest_pause_s(offer: Offer, spec: JobSpec, market: Market) -> float:
    """Return the longest normal time between two saves, in seconds; more means something is wrong.

    A job that chooses its own interval gets SLACK times the expected one, because saves may stall
    training for longer than assumed. By steps alone, and where saves cost money, it is the maximum.
    """
    saves = spec.checkpoint
    if not saves.auto:
        return saves.every_s or MOST_S
    if gb_microusd(offer, goes_to(offer, spec, market), market.stores.egress_microusd_per_gb) != 0:
        return MOST_S
    return min(max(saves.every_s, SLACK * _pause_s(offer, spec, 0.0)), MOST_S)


def store_of(spec: JobSpec, market: Market) -> StorePlace:
    """Return the place of the job's authority store."""
    return place_among(spec.checkpoint.store, market.stores.places)


def goes_to(offer: Offer, spec: JobSpec, market: Market) -> StorePlace:
    """Return the place that shards of the offer's machine go to."""
    return near_store(offer, spec, market.stores.places, market.stores.shards)[1]


def place_among(url: str, places: Mapping[str, tuple[str, ...]]) -> StorePlace:
    """Return the place of a store by the closest configured one."""
    under = [base for base in places if url == base or url.startswith(f"{base}/")]
    return StorePlace(*places[max(under, key=len)]) if under else place_of(url, {})


def may_have_shards(spec: JobSpec, shards: Sequence[str]) -> tuple[str, ...]:
    """Return the stores beside the job's own that may hold its shards.

    `shards` are those of the configuration. The job's own list decides where it saves now; the
    others may hold earlier saves. A manifest that names any other store is not to be trusted.
    """
    saves = spec.checkpoint
    urls = dict.fromkeys((*saves.shards, *shards))
    return tuple(url for url in urls if url != saves.store)


def saves_shards(spec: JobSpec) -> bool:
    """Return whether spotd uploads the job's checkpoints."""
    return spec.checkpoint.engine != "none" or bool(spec.checkpoint.directory)


def near_store(
    offer: Offer, spec: JobSpec, places: Mapping[str, tuple[str, ...]], shards: Sequence[str]
) -> tuple[str, StorePlace]:
    """Return the store for shards of the offer's machine, and its place.

    It is one in the machine's region, else the job's own, whose URL is "" here.
    """
    saves = spec.checkpoint
    own = place_among(saves.store, places)
    if not own.beside(offer) and saves_shards(spec):
        for url in saves.shards or shards:
            if url != saves.store and (place := place_among(url, places)).beside(offer):
                return url, place
    return "", own


def _pause_s(offer: Offer, spec: JobSpec, save_microusd: float) -> float:
    """Return the time between two saves in seconds; 0 if unknown, as by steps alone."""
    if not spec.checkpoint.auto:
        return spec.checkpoint.every_s
    second_microusd = offer.price_microusd_per_h * spec.resources.num_nodes / 3600
    costs_s = save_microusd / second_microusd if second_microusd else 0.0
    young_s = math.sqrt(2 * (STALL_S + costs_s) * mtbf_s(offer, (), spec.resources.num_nodes))
    return min(max(young_s, LEAST_S), MOST_S)


def way_of(data: DataSet, offer: Offer, places: Mapping[str, tuple[str, ...]]) -> Bucket:
    """Return what the offer's machine copies, and which regional copy it may make first."""
    at = place_among(data.url, places)
    near = next((url for url in data.copies if place_among(url, places).beside(offer)), "")
    if at.beside(offer) or at.cloud == HERE or (offer.local and not near):
        return Bucket("", data.url)
    price = 0 if offer.local else data.microusd_per_gb
    if price is None:
        price = _price_to(at, offer.cloud or offer.provider, data.leaving)
    return Bucket("", data.url, {}, near, {}, price, data.max_microusd)


def _price_to(at: StorePlace, cloud: str, leaving: Mapping[str, int]) -> int | None:
    """Return the price of a GB to a machine of `cloud` elsewhere; unknown within one cloud."""
    return None if at.cloud == cloud else leaving.get(at.cloud)
