"""Measure price moves: the change in a day, and the distance from that day's mean in sigmas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spotd.domain.units import S

DAY_S = 86_400.0
Points = Sequence[tuple[int, int]]  # (start time, micro-USD per hour), in order


@dataclass(frozen=True)
class PriceMove:
    """A move of a price.

    `change` 0.1 is 10 % above the price of a day ago. `z_score` is the distance from the day's
    time-weighted mean in standard deviations; 0.0 for a constant price.
    """

    change: float
    z_score: float


def price_move(points: Points, now_us: int, window_s: float = DAY_S) -> PriceMove | None:
    """Return the newest price's move against the window; None without a record of all of it."""
    since_us = now_us - round(window_s * S)
    before = [price for at_us, price in points if at_us <= since_us]
    if not before or not before[-1]:
        return None
    inside = [(at_us, price) for at_us, price in points if since_us < at_us <= now_us]
    steps = [(since_us, before[-1]), *inside, (now_us, 0)]
    parts = [(later - at_us, price) for (at_us, price), (later, _) in pairwise(steps)]
    total_us = sum(length for length, _ in parts)
    mean = sum(length * price for length, price in parts) / total_us
    variance = sum(length * (price - mean) ** 2 for length, price in parts) / total_us
    now, deviation = steps[-2][1], math.sqrt(variance)
    return PriceMove(now / before[-1] - 1, (now - mean) / deviation if deviation else 0.0)
