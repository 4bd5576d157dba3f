"""Exact intervals of rates and shares, and quantiles; small counts have wide intervals.

For a rate they are Garwood's (1936): quantiles of Gamma(n) and Gamma(n + 1) over the exposure. For
a share they are Clopper's and Pearson's (1934): quantiles of Beta(k, n - k + 1) and Beta(k + 1, n -
k). Both hold their coverage for any true value and are a little wide. The incomplete Gamma and Beta
functions are computed by series and continued fraction (Abramowitz and Stegun 6.5.29, 6.5.31,
26.5.8).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

COVERAGE = 0.9  # one of twenty lies below, one above
FEW = 5  # rates of fewer cases are marked as uncertain
_EPSILON = 1e-14
_TINY = 1e-300
_MOST_TERMS = 100_000


@dataclass(frozen=True)
class Interval:
    """A rate or share: `count` per `exposure` (machine-hours, or cases), with a 90 % interval."""

    count: int
    exposure: float
    middle: float
    low: float
    high: float

    @property
    def few(self) -> bool:
        """Return whether the figure rests on very few cases."""
        return self.count < FEW


def rate(count: int, exposure: float, coverage: float = COVERAGE) -> Interval | None:
    """Return cases per unit of exposure; None without exposure."""
    if exposure <= 0:
        return None
    outside = (1 - coverage) / 2
    low = gamma_quantile(count, outside) if count else 0.0
    high = gamma_quantile(count + 1, 1 - outside)
    return Interval(count, exposure, count / exposure, low / exposure, high / exposure)


def share(count: int, cases: int, coverage: float = COVERAGE) -> Interval | None:
    """Return the share of cases; None without any."""
    if cases <= 0:
        return None
    outside = (1 - coverage) / 2
    low = beta_quantile(count, cases - count + 1, outside) if count else 0.0
    high = beta_quantile(count + 1, cases - count, 1 - outside) if count < cases else 1.0
    return Interval(count, cases, count / cases, low, high)


def quantile(values: Sequence[float], part: float) -> float | None:
    """Return a quantile, interpolated between neighbours; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    at = part * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def gamma_quantile(shape: float, part: float) -> float:
    """Return where Gamma(shape) has `part` of its mass below."""
    high = shape + 1.0
    while gamma_below(shape, high) < part:
        high *= 2
    return _invert(lambda x: gamma_below(shape, x), part, high)


def beta_quantile(a: float, b: float, part: float) -> float:
    """Return where Beta(a, b) has `part` of its mass below."""
    return _invert(lambda x: beta_below(a, b, x), part, 1.0)


def _invert(below: Callable[[float], float], part: float, high: float) -> float:
    """Invert a distribution function by bisection, to the last digit of a float."""
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if below(middle) < part else (low, middle)
    return (low + high) / 2


def gamma_below(shape: float, x: float) -> float:
    """Return the mass of Gamma(shape) below x."""
    if x <= 0:
        return 0.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x >= shape + 1:
        return 1 - scale * _gamma_fraction(shape, x)
    term = total = 1 / shape
    for n in range(1, _MOST_TERMS):
        term *= x / (shape + n)
        total += term
        if term < total * _EPSILON:
            break
    return scale * total


def _gamma_fraction(shape: float, x: float) -> float:
    b = x + 1 - shape
    c, d = 1 / _TINY, 1 / b
    fraction = d
    for n in range(1, _MOST_TERMS):
        a = n * (shape - n)
        b += 2
        d = 1 / _off_zero(a * d + b)
        c = _off_zero(b + a / c)
        fraction *= c * d
        if abs(c * d - 1) < _EPSILON:
            break
    return fraction


def beta_below(a: float, b: float, x: float) -> float:
    """Return the mass of Beta(a, b) below x."""
    if not 0 < x < 1:
        return float(x >= 1)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    scale = math.exp(log + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return scale * _beta_fraction(a, b, x) / a
    return 1 - scale * _beta_fraction(b, a, 1 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _MOST_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < _EPSILON:
            break
    return fraction


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
