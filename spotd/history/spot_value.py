"""Compare what a useful hour costs on spot and on-demand, interruptions included.

A part of each machine hour is lost: phi = alpha + n * hazard * (restart + repeated work), with
alpha the share of time that saves take and n machines that stop together. A useful hour costs
(price + egress) / (1 - phi) (docs/cost.md). A job that saves nothing starts over each time: for H
hours it takes (1 / hazard + restart) * (e^(hazard * H) - 1), the mean of a run that is repeated
until it survives. A notice in time to save would lose less; nothing here relies on one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from providers.base import Offer
from spotd.domain.units import S
from spotd.history.intervals import gamma_quantile
from spotd.planner.core.checkpoint_interval import ObservedLifetimes, prior_h

COVERAGE = 0.9
RESTART_S = 240.0  # planned with where no start is on record: from a machine's end to training on
STARTS = 3  # on record, before their median counts
MOST_H = 200.0  # mean losses within one run that is begun anew: beyond that it never ends


@dataclass(frozen=True)
class Hazard:
    """Interruptions per machine-hour: mean and 90 % credible interval of a Gamma posterior.

    Its prior counts as one loss in `prior_h` hours.
    """

    middle: float
    low: float
    high: float
    losses: int
    hours: float
    prior_h: float


def hazard_of(offer: Offer, lives: Iterable[ObservedLifetimes]) -> Hazard:
    """Return the hazard of the offer's pool (provider, region, type, capacity type)."""
    pool, losses, hours = _pool(offer.key), 0, 0.0
    for life in lives:
        if _pool(life.offer_key) == pool:
            losses += life.losses
            hours += life.time_us / S / 3600
    shape, whole = 1 + losses, prior_h(offer) + hours
    low, high = (gamma_quantile(shape, p) / whole for p in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
    return Hazard(shape / whole, low, high, losses, hours, prior_h(offer))


def _pool(offer_key: str) -> tuple[str, ...]:
    provider, region, _zone, *rest = offer_key.split("/")
    return (provider, region, *rest)


@dataclass(frozen=True)
class InterruptionCost:
    """What an interruption takes from a job with `num_nodes` machines.

    `restart_h`, and `again_h` of work; None for all of it. `stall` is the share of time that saves
    take, `hours` the whole job's work, 0 if unknown.
    """

    num_nodes: int
    restart_h: float
    again_h: float | None
    stall: float = 0.0
    hours: float = 0.0

    @property
    def loss_h(self) -> float:
        return self.restart_h + (self.again_h or 0.0)


@dataclass(frozen=True)
class UsefulHourCost:
    """Dollars of a useful hour of the job there: the terms add up to `usd`. Infinite where it would
    never end."""

    usd: float
    machines_usd: float
    egress_usd: float
    saves_usd: float
    interruptions_usd: float


def side(
    usd_per_h: float,
    egress_usd_per_h: float,
    hazard: float,
    habits: InterruptionCost,
    pace: float = 1.0,
) -> UsefulHourCost:
    """Return the cost of a useful hour at prices of all machines together.

    `pace` is the speed relative to the machine of `hours`: a job that saves nothing has that much
    less time to be interrupted in.
    """
    habits = replace(habits, hours=habits.hours / pace)
    paid, often = usd_per_h + egress_usd_per_h, habits.num_nodes * hazard
    anew = habits.again_h is None
    lost = 1 - 1 / _stretched(often, habits) if anew else often * habits.loss_h
    phi = habits.stall + lost
    usd = paid / (1 - phi) if phi < 1 else math.inf
    return UsefulHourCost(
        usd, usd_per_h, egress_usd_per_h, usd * habits.stall, usd * lost if lost else 0.0
    )


def _stretched(often: float, habits: InterruptionCost) -> float:
    """Return how many times its `hours` a job takes that saves nothing."""
    mean = often * habits.hours
    if mean > MOST_H:
        return math.inf
    return (1 / often + habits.restart_h) * math.expm1(mean) / habits.hours if mean else 1.0


class SpotDecision(str, Enum):
    """Whether spot pays."""

    YES = "yes"  # at the upper end of the hazard's interval, too
    LIKELY = "likely"  # at its mean, and not at its upper end
    NO = "no"


@dataclass(frozen=True)
class SpotValue:
    """Both costs, spot at the mean of its hazard and at the ends of the interval.

    `break_even` is the hazard above which spot costs more; None if no price would be low enough, or
    if the job saves nothing. `discount` is that of the prices alone.
    """

    spot: UsefulHourCost
    low_usd: float
    high_usd: float
    on_demand: UsefulHourCost
    hazard: Hazard
    habits: InterruptionCost
    break_even: float | None
    discount: float

    @property
    def verdict(self) -> SpotDecision:
        if self.spot.usd >= self.on_demand.usd:
            return SpotDecision.NO
        return SpotDecision.YES if self.high_usd < self.on_demand.usd else SpotDecision.LIKELY

    @property
    def saving(self) -> float:
        """Expected, and never above the discount of the prices; below 0 where spot costs more."""
        return min(1 - self.spot.usd / self.on_demand.usd, self.discount)


def compare(
    spot: tuple[float, float],
    on_demand: tuple[float, float],
    hazard: Hazard,
    lasting: float,
    habits: InterruptionCost,
    paces: tuple[float, float] = (1.0, 1.0),
) -> SpotValue:
    """Compare both sides.

    `spot` and `on_demand` are dollars per hour of all machines and of egress, `lasting` is the
    hazard of an on-demand machine, `paces` are of both; see `side`.
    """
    pace, other_pace = paces
    other = side(*on_demand, lasting, habits, other_pace)
    found = side(*spot, hazard.middle, habits, pace)
    low, high = (side(*spot, end, habits, pace).usd for end in (hazard.low, hazard.high))
    even = None
    if habits.again_h is not None and habits.loss_h:
        left = 1 - habits.stall - sum(spot) / other.usd
        even = left / (habits.num_nodes * habits.loss_h) if left > 0 else None
    return SpotValue(found, low, high, other, hazard, habits, even, 1 - spot[0] / on_demand[0])


# --- the guides' rule, by size


@dataclass(frozen=True)
class Mode:
    """How guides divide a project between spot and on-demand, and what remains of a saving."""

    name: str
    text: str
    part: tuple[float, float]


SHORT_H = 2.0
# A case study's phases: 72 h of search, 216 h of training, 24 h of validation; and search is 20 to
# 40 % of the compute of a project, by the same.
_VALIDATION = 24 / 312
SPOT = Mode("spot", "all of it on spot", (1.0, 1.0))
HYBRID = Mode(
    "hybrid",
    "search and training on spot, validation on demand (24 of 312 h in their example)",
    (1 - _VALIDATION, 1 - _VALIDATION),
)
SEARCH = Mode(
    "search",
    "the search alone on spot (20 to 40 % of the compute), the run itself on demand",
    (0.2, 0.4),
)
SHORT = Mode("on_demand", "a run of less than 2 h on demand", (0.0, 0.0))
SMALL, LARGE = 13e9, 200e9


def mode_of(parameters: float, hours: float) -> Mode:
    """Return the mode by what guides say.

    A run under two hours on-demand; up to 13B on spot; 200B and more on-demand except the search;
    between them (70B is their example) both.
    """
    if 0 < hours < SHORT_H:
        return SHORT
    if parameters <= SMALL:
        return SPOT
    return SEARCH if parameters >= LARGE else HYBRID


def mode_saving(mode: Mode, worth: SpotValue) -> tuple[float, float]:
    """Return what remains of the expected saving in that mode: from, to. At most the discount."""
    low, high = (part * worth.saving for part in mode.part)
    return (low, high) if low <= high else (high, low)
