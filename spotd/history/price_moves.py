"""How far a price moved: its change in a day, and its distance from that day's mean in sigmas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spotd.domain.units import S

DAY_S = 86_400.0
Points = Sequence[tuple[int, int]]  # (from when, micro-USD an hour), in order


@dataclass(frozen=True)
class PriceMove:
    """`change` 0.1: 10 % above the price of a day ago. `z_score`: in standard deviations of the
    day's prices, each for as long as it was in force; 0.0 of a price that never moved."""

    change: float
    z_score: float


def swing(points: Points, now_us: int, window_s: float = DAY_S) -> PriceMove | None:
    """Return the newest price's move against the window; None without a record of all of it."""
    since_us = now_us - round(window_s * S)
    before = [price for at_us, price in points if at_us <= since_us]
    if not before or not before[-1]:
        return None
    inside = [(at_us, price) for at_us, price in points if since_us < at_us <= now_us]
    steps = [(since_us, before[-1]), *inside, (now_us, 0)]
    parts = [(later - at_us, price) for (at_us, price), (later, _) in pairwise(steps)]
    whole = sum(length for length, _ in parts)
    mean = sum(length * price for length, price in parts) / whole
    variance = sum(length * (price - mean) ** 2 for length, price in parts) / whole
    now, deviation = steps[-2][1], math.sqrt(variance)
    return PriceMove(now / before[-1] - 1, (now - mean) / deviation if deviation else 0.0)
