"""The formulas of docs/cost.md. Fractions are of 1, prices in one unit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def best_pause_h(hazard_per_h: float, save_h: float) -> float:
    """Return the cheapest checkpoint interval in hours: sqrt(2 C / hazard) (Young, 1974)."""
    return math.sqrt(2 * save_h / hazard_per_h)


def payback(cost: float, saving: float) -> float:
    """Return after how many months, or runs, of that saving an outlay is earned back."""
    return cost / saving


@dataclass(frozen=True)
class Estimate:
    """An estimated final cost: the middle, and the values that one in ten lies below and above."""

    low: float
    middle: float
    high: float


def estimate_at_completion(
    spent: float, remaining_h: float, overheads: Sequence[float], prices: Sequence[float]
) -> Estimate | None:
    """Return spent + remaining useful hours * (1 + overhead) * price, over the job's own history.

    Over every pair of an overhead that a stretch had and an hourly price that was paid. None
    without either. The interval is that of the pairs: no random draw, so it is the same for
    everyone.
    """
    costs = sorted(spent + remaining_h * (1 + o) * p for o in overheads for p in prices)
    if not costs:
        return None
    if len(costs) == 1:
        return Estimate(costs[0], costs[0], costs[0])
    tenths = statistics.quantiles(costs, n=10, method="inclusive")
    return Estimate(tenths[0], statistics.median(costs), tenths[-1])
