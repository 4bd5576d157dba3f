"""Where a machine's checkpoints go, and what it costs to bring them there.

HEAD and manifests lie in the job's one authority store. Shards lie in a store of the machine's own
region, where the job may use one there, so that bytes cross a cloud only when the job moves. And
where the data of jobs comes from: from beside the machine, by its region's own copy, or from afar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from providers.base import Offer
from spotd.datasets import DataSet
from spotd.decide.cadence import mtbf_s
from spotd.model import JobSpec, Market
from spotd.wire import Bucket

_CLOUDS = {"s3": "aws", "gs": "gcp", "az": "azure"}
HERE = "here"  # a folder: whatever carries bytes there, no cloud counts them
# Of a job that chooses its own pauses, before it has measured anything: what a save takes of
# training where staging overlaps with it, and the bounds of trainer/hook/spotd_hook/cadence.py.
STALL_S, LEAST_S, MOST_S = 0.5, 30.0, 3600.0
SLACK = 3.0
PART_BYTES = 16 << 20  # of a write, as providers/stores/bucket.py cuts what it sends
GIB, MONTH_H = 1 << 30, 730


class Place(NamedTuple):
    """Where a store is. `cloud` "" is none of the clouds whose prices are known: to it, bytes leave
    every cloud. `region` "" is not known. `zone` is of a folder that machines of that zone alone
    can mount."""

    cloud: str
    region: str = ""
    zone: str = ""

    def beside(self, offer: Offer) -> bool:
        """Whether the offer's machine is in its region."""
        return (self.cloud, self.region) == (offer.cloud or offer.provider, offer.region)


def place_of(
    url: str, options: Mapping[str, str], cloud: str = "", region: str = "", zone: str = ""
) -> Place:
    """Of a store's URL and its options (`endpoint`, `region`); what somebody has said, `cloud`,
    `region` and `zone`, counts more."""
    scheme = url.partition(":")[0]
    if scheme == "file" and not cloud:
        return Place(HERE)
    if options.get("endpoint") and not cloud:
        return Place("", region)
    return Place(cloud or _CLOUDS.get(scheme, ""), region or options.get("region", ""), zone)


def gb_microusd(offer: Offer, store: Place, leaving: Mapping[str, int]) -> int | None:
    """Of a GB from the offer's machine to `store`; None where no price is known, as between two
    regions of a cloud. `leaving` is what each cloud takes for a GB that leaves it."""
    if offer.local or store.cloud == HERE:
        return 0
    if store.cloud != offer.cloud:
        return leaving.get(offer.cloud)
    return 0 if store.region == offer.region else None


def egress_microusd_per_h(offer: Offer, spec: JobSpec, market: Market) -> int | None:
    """What the job's checkpoints cost an hour there for bytes that leave; None where that is not
    known: the price, the size of a save, or how often there is one. Of a job that has stores for
    shards, the way back is in it: with each expected preemption one checkpoint leaves the store,
    as if the next machine were always in another cloud."""
    saves = spec.checkpoint
    if saves.engine == "none":
        return None
    place = goes_to(offer, spec, market)
    gb = gb_microusd(offer, place, market.leaving)
    if gb is None:
        return None
    back = 0.0
    if may_have_shards(spec, market.shards) and not offer.local and place.cloud != HERE:
        if place.cloud not in market.leaving or not saves.size_bytes:
            return None
        lives_h = mtbf_s(offer, (), spec.num_nodes) / 3600
        back = saves.size_bytes / 1e9 * market.leaving[place.cloud] / lives_h
    if not gb:
        return round(back)
    each_h = saves_per_h(offer, spec, market)
    return round(saves.size_bytes / 1e9 * gb * each_h + back) if each_h else None


def requests_microusd_per_h(offer: Offer, spec: JobSpec, market: Market) -> int | None:
    """What the writes of the job's saves cost an hour there, a part of PART_BYTES each; None where
    the price, a save's size or how often there is one is not known. `market.storing`, by cloud: the
    price of a GiB that lies there for a month, and of a thousand writes, in micro-USD."""
    saves = spec.checkpoint
    if saves.engine == "none" or not saves.size_bytes:
        return None
    price = market.storing.get(goes_to(offer, spec, market).cloud)
    each_h = saves_per_h(offer, spec, market)
    if price is None or not each_h:
        return None
    return round(-(-saves.size_bytes // PART_BYTES) * each_h * price[1] / 1000)


def carried_microusd_per_h(offer: Offer, spec: JobSpec, market: Market) -> int:
    """What the job's checkpoints cost an hour there, as far as that is known: what leaves, the
    requests, and for `keep` of them to lie there."""
    saves = spec.checkpoint
    price = market.storing.get(goes_to(offer, spec, market).cloud)
    lies = 0
    if price is not None and saves.engine != "none":
        lies = round(saves.size_bytes * saves.keep / GIB * price[0] / MONTH_H)
    known = (f(offer, spec, market) or 0 for f in (egress_microusd_per_h, requests_microusd_per_h))
    return sum(known) + lies


def saves_per_h(offer: Offer, spec: JobSpec, market: Market) -> float:
    """How often the job saves there; 0 where that is not known, or not how large a save is."""
    size_gb = spec.checkpoint.size_bytes / 1e9
    gb = gb_microusd(offer, goes_to(offer, spec, market), market.leaving) or 0
    pause_s = _pause_s(offer, spec, size_gb * gb)
    return 3600 / pause_s if size_gb and pause_s else 0.0


def longest_pause_s(offer: Offer, spec: JobSpec, market: Market) -> float:
    """What may lie between two saves there before something is wrong. Of a job that chooses by
    itself, SLACK of what it is expected to choose: its saves may stall training for longer than is
    thought here. By steps alone, and where saves cost money, the most that there is."""
    saves = spec.checkpoint
    if not saves.auto:
        return saves.every_s or MOST_S
    if gb_microusd(offer, goes_to(offer, spec, market), market.leaving) != 0:
        return MOST_S
    return min(max(saves.every_s, SLACK * _pause_s(offer, spec, 0.0)), MOST_S)


def store_of(spec: JobSpec, market: Market) -> Place:
    """Where the job's authority store is."""
    return place_among(spec.checkpoint.store, market.places)


def goes_to(offer: Offer, spec: JobSpec, market: Market) -> Place:
    """Where the shards of the offer's machine go."""
    return near_store(offer, spec, market.places, market.shards)[1]


def place_among(url: str, places: Mapping[str, tuple[str, ...]]) -> Place:
    """Of a store, by the closest of those that are configured."""
    under = [base for base in places if url == base or url.startswith(f"{base}/")]
    return Place(*places[max(under, key=len)]) if under else place_of(url, {})


def may_have_shards(spec: JobSpec, shards: Sequence[str]) -> tuple[str, ...]:
    """The stores beside the job's own that its shards may be in; `shards` are those of the
    configuration. What the job names counts alone for what it saves, and the others may have what
    was saved before: a manifest that names any other store is not to be believed."""
    saves = spec.checkpoint
    urls = dict.fromkeys((*saves.shards, *shards))
    return tuple(url for url in urls if url != saves.store)


def saves_shards(spec: JobSpec) -> bool:
    """Whether we carry what the job saves."""
    return spec.checkpoint.engine != "none" or bool(spec.checkpoint.directory)


def near_store(
    offer: Offer, spec: JobSpec, places: Mapping[str, tuple[str, ...]], shards: Sequence[str]
) -> tuple[str, Place]:
    """The store that shards of the offer's machine go to, and where that is: one in its own region,
    and where there is none the job's own, whose URL is "" here."""
    saves = spec.checkpoint
    own = place_among(saves.store, places)
    if not own.beside(offer) and saves_shards(spec):
        for url in saves.shards or shards:
            if url != saves.store and (place := place_among(url, places)).beside(offer):
                return url, place
    return "", own


def _pause_s(offer: Offer, spec: JobSpec, save_microusd: float) -> float:
    """Between two saves; 0 where it is not known, as by steps alone."""
    if not spec.checkpoint.auto:
        return spec.checkpoint.every_s
    second_microusd = offer.price_microusd_per_h * spec.num_nodes / 3600
    costs_s = save_microusd / second_microusd if second_microusd else 0.0
    young_s = math.sqrt(2 * (STALL_S + costs_s) * mtbf_s(offer, (), spec.num_nodes))
    return min(max(young_s, LEAST_S), MOST_S)


def way_of(data: DataSet, offer: Offer, places: Mapping[str, tuple[str, ...]]) -> Bucket:
    """What the offer's machine copies, and of what it may make a copy in its region first."""
    at = place_among(data.url, places)
    near = next((url for url in data.copies if place_among(url, places).beside(offer)), "")
    if at.beside(offer) or at.cloud == HERE or (offer.local and not near):
        return Bucket("", data.url)
    price = 0 if offer.local else data.microusd_per_gb
    if price is None:
        price = _price_to(at, offer.cloud or offer.provider, data.leaving)
    return Bucket("", data.url, {}, near, {}, price, data.max_microusd)


def _price_to(at: Place, cloud: str, leaving: Mapping[str, int]) -> int | None:
    """Of a GB to a machine of `cloud` elsewhere; between regions of one cloud none is on file."""
    return None if at.cloud == cloud else leaving.get(at.cloud)
