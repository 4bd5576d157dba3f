"""This fleet's history of each pool: granted and refused launches, held and preempted machines.

A pool is one place of one machine type (provider/region/zone/type), however it is sold there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import lru_cache

from providers.base import CapacityType, Offer
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.units import S
from spotd.planner.spot_policy import PoolRecord, Sighting, recorded

HELD_S = 1800.0  # while a machine is held its pool is seen so often
AT_ONCE_S = 300.0  # after a loss; what is asked for later waited for something
NO_ROOM = "CapacityError"  # of all refusals the one that says that nothing is to be had
_SOLD_TOGETHER = (CapacityType.SPOT.value, CapacityType.ON_DEMAND.value)


def pool_of(offer: Offer) -> str:
    """Spot and on-demand of one type in one zone are one pool; what is reserved is one by
    itself."""
    return pool_key(offer.key)


def pool_key(offer_key: str) -> str:
    """The pool of an offer, by its key."""
    place, _, sold_as = offer_key.rpartition("/")
    return place if sold_as in _SOLD_TOGETHER else offer_key


def records(past: FleetHistory) -> Mapping[str, PoolRecord]:
    """Return the record of every pool in which spot was requested. Cached per history read."""
    cached = past.cache.get("records")
    if cached is None:
        cached = past.cache["records"] = _records(past)
    return cached  # type: ignore[return-value]


def found_elsewhere(past: FleetHistory) -> tuple[float, float]:
    """Return how often other spot was found at once after a loss, and the number of such losses.

    Only losses after which spot was requested at once, without those still being requested. Cached
    per history read.
    """
    cached = past.cache.get("elsewhere")
    if cached is None:
        cached = past.cache["elsewhere"] = _found_elsewhere(past)
    return cached  # type: ignore[return-value]


def _found_elsewhere(past: FleetHistory) -> tuple[float, float]:
    spot = [stay for stay in past.stays if stay.offer_key.endswith("/spot")]
    asked = sorted((stay.asked_at_us, bool(stay.began_at_us)) for stay in spot)
    hits = looks = 0
    for stay in spot:
        if not stay.lost:
            continue
        over_us = stay.until_us + int(AT_ONCE_S * S)
        first, last = (
            bisect_left(asked, (stay.until_us, False)),
            bisect_left(asked, (over_us, False)),
        )
        had = any(had for _, had in asked[first:last])
        looks += last > first and (had or over_us <= past.read_at_us)
        hits += had
    return float(hits), float(looks)


def _records(past: FleetHistory) -> dict[str, PoolRecord]:
    stays: dict[str, list[NodeLifetime]] = {}
    for stay in past.stays:
        if stay.offer_key.endswith("/spot"):
            stays.setdefault(pool_key(stay.offer_key), []).append(stay)
    return {pool: _record(tuple(all_of_it)) for pool, all_of_it in stays.items()}


@lru_cache(maxsize=4096)  # from one reading of the past to the next most pools stay as they were
def _record(stays: tuple[NodeLifetime, ...]) -> PoolRecord:
    seen = [sighting for stay in stays for sighting in _sightings(stay)]
    return recorded(sorted(seen, key=lambda one: (one.at_s, not one.up)))


def _sightings(stay: NodeLifetime) -> Iterator[Sighting]:
    if stay.refused == NO_ROOM:
        yield Sighting(stay.asked_at_us / S, up=False)
    if not stay.began_at_us:
        return
    at_s, until_s = stay.began_at_us / S, stay.until_us / S
    while at_s < until_s:
        yield Sighting(at_s, up=True)
        at_s += HELD_S
    yield Sighting(max(until_s, stay.began_at_us / S), up=not stay.lost)
