"""Compute intervals of a job's completion time and cost from its measurements.

The remaining work is trained at a pace like those measured, interrupted as often as this fleet's
record of such machines says, each time for as long as the job's own interruptions took, and each
hour costs like those it paid. All combinations of these four are weighted and none is drawn at
random, so that the result is reproducible. The number of interruptions is negative binomial: a
Poisson count whose hazard has a Gamma posterior (Gelman et al., Bayesian Data Analysis, 2.6). The
time of n interruptions is normal around n times their mean, with the uncertainty of that mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

COVERAGE = 0.9  # one of twenty outcomes lies below, one above
_PARTS = (0.1, 0.3, 0.5, 0.7, 0.9)  # the middles of fifths, which represent a distribution
_DEVIATES = tuple(statistics.NormalDist().inv_cdf(part) for part in _PARTS)
_MOST_COUNTS = 41
_MOST = 100_000  # upper limit of the number of interruptions


@dataclass(frozen=True)
class Measurements:
    """Measurements of a job.

    `left_s` is the remaining training time at its mean pace. `paces` are seconds per step in its
    stretches, relative to that mean. `losses_s` are the durations of its interruptions, each from
    the last step before to the first new one after. `rates` are equally likely hourly costs of all
    its machines. `starts`: it has to start first. `losses` happened in `hours` of such machines,
    and the prior is one in `prior_h`.
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
    """The median outcome, and the bounds of the 90 % interval."""

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
    part = known.num_nodes * known.hazard * mean_s / 3600  # share of time that interruptions take
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
    """Return (count, probability) of interruptions in `exposure`, for a Gamma(shape, rate) hazard.

    `exposure` has the unit of `rate`. If there are many counts, equally likely quantiles are
    returned instead.
    """
    log_p = shape * math.log(rate / (rate + exposure))
    step = exposure / (rate + exposure)
    probabilities: list[tuple[float, float]] = []
    below, log_step = 0.0, math.log(step) if step else -math.inf
    for count in range(_MOST):
        weight = math.exp(log_p)
        probabilities.append((count, weight))
        below += weight
        if below > 0.9995 or not step:
            break
        log_p += math.log((shape + count) / (count + 1)) + log_step
    if len(probabilities) <= _MOST_COUNTS:
        return probabilities
    parts = [(n + 0.5) / _MOST_COUNTS for n in range(_MOST_COUNTS)]
    return [(value, 1 / _MOST_COUNTS) for value in quantiles(probabilities, parts)]


def _lost_s(losses_s: Sequence[float], count: float, deviate: float) -> float:
    """Return the time that `count` interruptions take, `deviate` standard deviations from the mean.

    With a single measurement the standard deviation is taken to be as large as the mean, as for
    events of constant rate.
    """
    n, mean = len(losses_s), statistics.fmean(losses_s)
    variance = statistics.variance(losses_s) if n > 1 else mean * mean
    spread = math.sqrt(count * variance + count * count * variance / n)
    return max(0.0, count * mean + deviate * spread)


def _spread(values: Sequence[float]) -> list[float]:
    """Return a few values that represent all of them."""
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
    total = sum(weight for _, weight in ordered)
    values, at, below = [], 0, ordered[0][1]
    for part in parts:
        while below < part * total and at < len(ordered) - 1:
            at += 1
            below += ordered[at][1]
        values.append(ordered[at][0])
    return values
