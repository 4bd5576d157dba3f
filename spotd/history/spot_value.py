"""Compare the cost of a useful hour on spot and on-demand, including interruptions.

A part of each machine hour is lost: phi = alpha + n * hazard * (restart + repeated work), with
alpha the share of time that saves take and n machines that stop together. A useful hour costs
(price + egress) / (1 - phi) (docs/cost.md). A job that saves nothing starts over each time: for H
hours it takes (1 / hazard + restart) * (e^(hazard * H) - 1), the mean of a run that is repeated
until it survives. A save during the notice would lose less, but is not assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from providers.base import Offer
from spotd.domain.units import S
from spotd.history.intervals import gamma_quantile
from spotd.planner.core.checkpoint_interval import ObservedLifetimes, pool_beyond_zones, prior_h

COVERAGE = 0.9
RESTART_S = 240.0  # assumed time from a machine's end to further training, without a record
STARTS = 3  # minimum number of recorded starts for their median
MOST_H = 200.0  # mean losses within one run that starts over: above that it never ends


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
    pool, losses, hours = pool_beyond_zones(offer.key), 0, 0.0
    for life in lives:
        if pool_beyond_zones(life.offer_key) == pool:
            losses += life.losses
            hours += life.time_us / S / 3600
    shape, total_h = 1 + losses, prior_h(offer) + hours
    low, high = (
        gamma_quantile(shape, p) / total_h for p in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
    )
    return Hazard(shape / total_h, low, high, losses, hours, prior_h(offer))


@dataclass(frozen=True)
class InterruptionCost:
    """The cost of an interruption of a job with `num_nodes` machines, in hours.

    It takes `restart_h` and repeats `again_h` of work; None for all of it. `stall` is the share of
    time that saves take, and `hours` the total work of the job, 0 if unknown.
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
    """The cost of a useful hour in USD, with terms that add up. Infinite if it would never end."""

    usd: float
    machines_usd: float
    egress_usd: float
    saves_usd: float
    interruptions_usd: float


def useful_hour_cost(
    usd_per_h: float,
    egress_usd_per_h: float,
    hazard: float,
    cost: InterruptionCost,
    pace: float = 1.0,
) -> UsefulHourCost:
    """Return the cost of a useful hour at prices of all machines together.

    `pace` is the speed relative to the machine of `hours`: a job that saves nothing has that much
    less time to be interrupted in.
    """
    cost = replace(cost, hours=cost.hours / pace)
    paid, often = usd_per_h + egress_usd_per_h, cost.num_nodes * hazard
    anew = cost.again_h is None
    lost = 1 - 1 / _stretched(often, cost) if anew else often * cost.loss_h
    phi = cost.stall + lost
    usd = paid / (1 - phi) if phi < 1 else math.inf
    return UsefulHourCost(
        usd, usd_per_h, egress_usd_per_h, usd * cost.stall, usd * lost if lost else 0.0
    )


def _stretched(often: float, cost: InterruptionCost) -> float:
    """Return by which factor a job that saves nothing takes longer than its `hours`."""
    mean = often * cost.hours
    if mean > MOST_H:
        return math.inf
    return (1 / often + cost.restart_h) * math.expm1(mean) / cost.hours if mean else 1.0


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
    interruption_cost: InterruptionCost
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
    on_demand_hazard: float,
    cost: InterruptionCost,
    paces: tuple[float, float] = (1.0, 1.0),
) -> SpotValue:
    """Compare both sides.

    `spot` and `on_demand` are dollars per hour of all machines and of egress, `lasting` is the
    hazard of an on-demand machine, `paces` are of both; see `side`.
    """
    pace, other_pace = paces
    on_demand_cost = useful_hour_cost(*on_demand, on_demand_hazard, cost, other_pace)
    spot_cost = useful_hour_cost(*spot, hazard.middle, cost, pace)
    low, high = (useful_hour_cost(*spot, end, cost, pace).usd for end in (hazard.low, hazard.high))
    break_even = None
    if cost.again_h is not None and cost.loss_h:
        left = 1 - cost.stall - sum(spot) / on_demand_cost.usd
        break_even = left / (cost.num_nodes * cost.loss_h) if left > 0 else None
    return SpotValue(
        spot_cost, low, high, on_demand_cost, hazard, cost, break_even, 1 - spot[0] / on_demand[0]
    )


# --- the rule of published guides, by size of the model


@dataclass(frozen=True)
class Mode:
    """How guides divide a project between spot and on-demand; `part` is the remaining saving."""

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
    """Return the mode that guides recommend.

    A run under two hours on-demand; up to 13B on spot; 200B and more on-demand except the search;
    between them (70B is their example) both.
    """
    if 0 < hours < SHORT_H:
        return SHORT
    if parameters <= SMALL:
        return SPOT
    return SEARCH if parameters >= LARGE else HYBRID


def mode_saving(mode: Mode, value: SpotValue) -> tuple[float, float]:
    """Return what remains of the expected saving in that mode: from, to. At most the discount."""
    low, high = (part * value.saving for part in mode.part)
    return (low, high) if low <= high else (high, low)
