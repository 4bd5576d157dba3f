"""Spot or not today: what a useful hour costs on spot and on demand, interruptions included.

Of each machine's hour a part is lost: phi = alpha + n * hazard * (restart + work again), with alpha
the share in which training stands for saves, and n machines that stop together. A useful hour costs
(price + egress) / (1 - phi) (docs/cost.md; facts: P / (1 - phi)). A job that keeps nothing begins
anew each time: of H hours it takes (1 / hazard + restart) * (e^(hazard * H) - 1), the mean of a
run that is begun again until it survives. A notice in time to save would lose less; nothing here
counts on one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from providers.base import Offer
from spotd.decide.cadence import Life, prior_h
from spotd.history.intervals import gamma_quantile
from spotd.model import S

COVERAGE = 0.9
RESTART_S = 240.0  # planned with where no start is on record: from a machine's end to training on
STARTS = 3  # on record, before their median counts
MOST_H = 200.0  # mean losses within one run that is begun anew: beyond that it never ends


@dataclass(frozen=True)
class Hazard:
    """Interruptions per machine-hour: the mean and a 90 % credible interval of a Gamma posterior
    whose prior counts as one loss in `prior_h` hours."""

    middle: float
    low: float
    high: float
    losses: int
    hours: float
    prior_h: float


def hazard_of(offer: Offer, lives: Iterable[Life]) -> Hazard:
    """Of the offer's pool (provider, region, type, capacity type), by what this fleet has had."""
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
class Habits:
    """What an interruption takes of a job with `num_nodes` machines: `restart_h`, and `again_h` of
    work; None for all of it. `stall` is the share of time that saves take; `hours` the whole
    job's, 0 where that is not known."""

    num_nodes: int
    restart_h: float
    again_h: float | None
    stall: float = 0.0
    hours: float = 0.0

    @property
    def loss_h(self) -> float:
        return self.restart_h + (self.again_h or 0.0)


@dataclass(frozen=True)
class Side:
    """Dollars of a useful hour of the job there: the terms add up to `usd`. Infinite where it would
    never end."""

    usd: float
    machines_usd: float
    egress_usd: float
    saves_usd: float
    interruptions_usd: float


def side(
    usd_per_h: float, egress_usd_per_h: float, hazard: float, habits: Habits, pace: float = 1.0
) -> Side:
    """At prices of all machines together. `pace`: how many times as fast as the machine that the
    `hours` of work are of; what keeps nothing has that much less time to be interrupted in."""
    habits = replace(habits, hours=habits.hours / pace)
    paid, often = usd_per_h + egress_usd_per_h, habits.num_nodes * hazard
    anew = habits.again_h is None
    lost = 1 - 1 / _stretched(often, habits) if anew else often * habits.loss_h
    phi = habits.stall + lost
    usd = paid / (1 - phi) if phi < 1 else math.inf
    return Side(usd, usd_per_h, egress_usd_per_h, usd * habits.stall, usd * lost if lost else 0.0)


def _stretched(often: float, habits: Habits) -> float:
    """How many times as long as its `hours` a job takes that keeps nothing."""
    mean = often * habits.hours
    if mean > MOST_H:
        return math.inf
    return (1 / often + habits.restart_h) * math.expm1(mean) / habits.hours if mean else 1.0


class Verdict(str, Enum):
    """Whether spot pays."""

    YES = "yes"  # at the upper end of the hazard's interval, too
    LIKELY = "likely"  # at its mean, and not at its upper end
    NO = "no"


@dataclass(frozen=True)
class Worth:
    """Both sides, spot at the mean of its hazard and at the ends of the interval. `break_even` is
    the hazard from which on spot costs more; None where no price of it would be low enough, or
    where a job keeps nothing. `discount` is that of the prices alone."""

    spot: Side
    low_usd: float
    high_usd: float
    on_demand: Side
    hazard: Hazard
    habits: Habits
    break_even: float | None
    discount: float

    @property
    def verdict(self) -> Verdict:
        if self.spot.usd >= self.on_demand.usd:
            return Verdict.NO
        return Verdict.YES if self.high_usd < self.on_demand.usd else Verdict.LIKELY

    @property
    def saving(self) -> float:
        """Expected, and never above the discount of the prices; below 0 where spot costs more."""
        return min(1 - self.spot.usd / self.on_demand.usd, self.discount)


def compare(
    spot: tuple[float, float],
    on_demand: tuple[float, float],
    hazard: Hazard,
    lasting: float,
    habits: Habits,
    paces: tuple[float, float] = (1.0, 1.0),
) -> Worth:
    """`spot` and `on_demand` are dollars an hour of all machines, and what leaves the cloud an
    hour; `lasting` is the hazard of a machine on demand, and `paces` are of both, see `side`."""
    pace, other_pace = paces
    other = side(*on_demand, lasting, habits, other_pace)
    found = side(*spot, hazard.middle, habits, pace)
    low, high = (side(*spot, end, habits, pace).usd for end in (hazard.low, hazard.high))
    even = None
    if habits.again_h is not None and habits.loss_h:
        left = 1 - habits.stall - sum(spot) / other.usd
        even = left / (habits.num_nodes * habits.loss_h) if left > 0 else None
    return Worth(found, low, high, other, hazard, habits, even, 1 - spot[0] / on_demand[0])


# --- the guides' rule, by size


@dataclass(frozen=True)
class Mode:
    """How guides to training on spot divide a project between spot and machines that stay, and what
    part of a saving is left then: from, to."""

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
    """By what guides say: a run under two hours on demand; up to 13B spot, 200B and more on
    machines that stay but for the search, what lies between (70B is their example) both."""
    if 0 < hours < SHORT_H:
        return SHORT
    if parameters <= SMALL:
        return SPOT
    return SEARCH if parameters >= LARGE else HYBRID


def mode_saving(mode: Mode, worth: Worth) -> tuple[float, float]:
    """What is left of the expected saving in that mode, from and to; at most the discount."""
    low, high = (part * worth.saving for part in mode.part)
    return (low, high) if low <= high else (high, low)
