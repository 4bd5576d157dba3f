"""Inputs for a job's checkpoint interval: machine lifetimes and the cost of saves.

The interval itself is chosen on the machine, which measures its saves
(trainer/hook/spotd_hook/cadence.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from providers.base import CapacityType, Offer
from providers.clouds import CLOUDS
from spotd.domain.units import S

WITHIN_S = 30 * 86_400.0  # what is longer ago says little of a pool that changes

# What is believed of a machine before this fleet has had one: hours between losses, and by what.
# Each cloud's facts have its own; of the others no trace is known.
SPOT_UNKNOWN_H = 4.0
UNKNOWN_SOURCE = "no trace is known: as on AWS"
# Not spot: 419 unexpected interruptions in 54 days of 16,384 H100s, that is 2,048 machines (The
# Llama 3 Herd of Models, 2024, table 5).
LASTING_H = 54 * 24 * 2048 / 419
LASTING_SOURCE = "Llama 3 on 2,048 machines with H100s, 2024"


@dataclass(frozen=True)
class ObservedLifetimes:
    """Machine time of one offer in this fleet, and the losses in that time."""

    offer_key: str
    time_us: int
    losses: int


@dataclass(frozen=True)
class CheckpointTerms:
    """`mtbf_s` is the mean time between losses of any of the job's machines. A GB that is uploaded
    costs as much as `gb_costs_s` seconds of them all, a write `put_costs_s`; 0 where no price is
    known."""

    mtbf_s: float
    gb_costs_s: float = 0.0
    put_costs_s: float = 0.0


def mtbf_s(offer: Offer, lives: Iterable[ObservedLifetimes], num_nodes: int = 1) -> float:
    """Return the mean time between losses of a job with `num_nodes` machines, in seconds.

    The mean of a Gamma posterior: the prior counts as one loss in its time, and this fleet's record
    of the same pool (provider, region, type and capacity type, any zone) is added to it.
    """
    losses, time_s = 1, prior_h(offer) * 3600
    pool = pool_beyond_zones(offer.key)
    for life in lives:
        if pool_beyond_zones(life.offer_key) == pool:
            losses += life.losses
            time_s += life.time_us / S
    return time_s / losses / num_nodes


def prior_h(offer: Offer) -> float:
    """Hours between losses of one machine, before any was had."""
    return prior_of(offer.cloud, offer.capacity_type.value)[0]


def prior_of(cloud: str, capacity: str) -> tuple[float, str]:
    """Return the expected hours between losses of one machine before any record, and the source."""
    if capacity != CapacityType.SPOT.value:
        return LASTING_H, LASTING_SOURCE
    known = CLOUDS[cloud].spot_prior if cloud in CLOUDS else None
    return (known.hours, known.source) if known else (SPOT_UNKNOWN_H, UNKNOWN_SOURCE)


def terms_of(
    offer: Offer,
    lives: Iterable[ObservedLifetimes],
    num_nodes: int,
    gb_microusd: int | None = None,
    put_microusd: float | None = None,
) -> CheckpointTerms:
    """Return what the program needs to choose its interval.

    `gb_microusd` and `put_microusd` are the prices of a GB sent to the store and of one write, in
    micro-USD; None if unknown.
    """
    mean_s = mtbf_s(offer, lives, num_nodes)
    second_microusd = offer.price_microusd_per_h * num_nodes / 3600
    if not second_microusd:
        return CheckpointTerms(mean_s)
    gb_s, put_s = (gb_microusd or 0) / second_microusd, (put_microusd or 0) / second_microusd
    return CheckpointTerms(mean_s, gb_s, put_s)


@lru_cache(maxsize=4096)  # every offer is looked at whenever one is chosen
def pool_beyond_zones(offer_key: str) -> tuple[str, ...]:
    """Return the parts of an offer's key that offers in other zones of its region share."""
    provider, region, _zone, *rest = offer_key.split("/")
    return (provider, region, *rest)
