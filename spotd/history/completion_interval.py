"""When a job will be done and its cost, with an interval, from what was measured of it.

The rest is trained at a pace like those of its own stretches. It is interrupted as often as this
fleet's record of such machines says, each time for as long as its own interruptions took, and each
hour costs like those it paid. Every outcome of these four is weighed and none is drawn, so that
everyone gets the same answer. The number of interruptions is negative binomial: the Poisson of a
hazard that is known as a Gamma posterior (Gelman et al., Bayesian Data Analysis, 2.6). The time of
n interruptions is normal around n times their mean, with the uncertainty of that mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

COVERAGE = 0.9  # one of twenty outcomes lies below, one above
_PARTS = (0.1, 0.3, 0.5, 0.7, 0.9)  # the middles of fifths, which stand for a whole distribution
_DEVIATES = tuple(statistics.NormalDist().inv_cdf(part) for part in _PARTS)
_MOST_COUNTS = 41
_MOST = 100_000  # interruptions: beyond that nobody waits


@dataclass(frozen=True)
class Measurements:
    """What was measured of a job.

    `paces` are seconds per step in its stretches, relative to the one behind `left_s`. `losses_s`
    is what its interruptions took, each from the last step before to the first new one after.
    `rates` are equally likely hourly costs of all its machines. `starts`: it has to start first.
    `losses` happened in `hours` of such machines, and the prior is one in `prior_h`.
    """

    left_s: float
    paces: Sequence[float]
    losses_s: Sequence[float]
    rates: Sequence[float]
    num_nodes: int
    losses: int
    hours: float
    prior_h: float
    starts: bool = False

    @property
    def hazard(self) -> float:
        """Interruptions per machine-hour: the mean of the posterior."""
        return (1 + self.losses) / (self.prior_h + self.hours)


@dataclass(frozen=True)
class Range:
    """The middle outcome, and what nine of ten lie between."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Completion:
    """Hours until the job is done, their cost in the unit of the rates, and the interruptions."""

    hours: Range
    cost: Range
    interruptions: Range


def completion(known: Measurements) -> Completion | None:
    """Return the interval, or None if interruptions take as long as the time between them.

    Raises ValueError without a pace, a loss or a rate.
    """
    if not (known.paces and known.losses_s and known.rates):
        raise ValueError("nothing was measured")
    mean_s = statistics.fmean(known.losses_s)
    part = known.num_nodes * known.hazard * mean_s / 3600  # of the time, that interruptions take
    if part >= 1:
        return None
    exposure = known.num_nodes * known.left_s / 3600 / (1 - part)
    counts = interruptions(1 + known.losses, known.prior_h + known.hours, exposure)
    hours: list[tuple[float, float]] = []
    for pace, (count, weight), deviate in product(_spread(known.paces), counts, _DEVIATES):
        lost_s = _lost_s(known.losses_s, count + known.starts, deviate)
        hours.append(((known.left_s * pace + lost_s) / 3600, weight))
    costs = [(h * rate, weight) for (h, weight), rate in product(hours, _spread(known.rates))]
    return Completion(_between(hours), _between(costs), _between(counts))


def interruptions(shape: float, rate: float, exposure: float) -> list[tuple[float, float]]:
    """(how many, how likely), of a hazard that is Gamma(shape, rate), in `exposure` of the unit of
    the rate: all of them where they are few, else their quantiles, each as likely."""
    log_p = shape * math.log(rate / (rate + exposure))
    step = exposure / (rate + exposure)
    found: list[tuple[float, float]] = []
    below, log_step = 0.0, math.log(step) if step else -math.inf
    for count in range(_MOST):
        weight = math.exp(log_p)
        found.append((count, weight))
        below += weight
        if below > 0.9995 or not step:
            break
        log_p += math.log((shape + count) / (count + 1)) + log_step
    if len(found) <= _MOST_COUNTS:
        return found
    parts = [(n + 0.5) / _MOST_COUNTS for n in range(_MOST_COUNTS)]
    return [(value, 1 / _MOST_COUNTS) for value in quantiles(found, parts)]


def _lost_s(losses_s: Sequence[float], count: float, deviate: float) -> float:
    """Return what so many interruptions take.

    With a single known one their spread is unknown: it counts as large as they are, like an event
    of constant rate.
    """
    n, mean = len(losses_s), statistics.fmean(losses_s)
    variance = statistics.variance(losses_s) if n > 1 else mean * mean
    spread = math.sqrt(count * variance + count * count * variance / n)
    return max(0.0, count * mean + deviate * spread)


def _spread(values: Sequence[float]) -> list[float]:
    """A few that stand for all of them."""
    if len(values) <= len(_PARTS):
        return list(values)
    return quantiles([(value, 1.0) for value in values], _PARTS)


def _between(outcomes: Iterable[tuple[float, float]]) -> Range:
    outside = (1 - COVERAGE) / 2
    return Range(*quantiles(outcomes, (outside, 0.5, 1 - outside)))


def quantiles(outcomes: Iterable[tuple[float, float]], parts: Sequence[float]) -> list[float]:
    """Return weighted quantiles: the least value with so much weight at or below it.

    `parts` are in rising order.
    """
    ordered = sorted(outcomes)
    whole = sum(weight for _, weight in ordered)
    found, at, below = [], 0, ordered[0][1]
    for part in parts:
        while below < part * whole and at < len(ordered) - 1:
            at += 1
            below += ordered[at][1]
        found.append(ordered[at][0])
    return found
