"""The formulas of docs/cost.md. Fractions are of 1, prices in one unit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def goodput(useful: float, wall: float) -> float:
    """Return the share of time whose progress survives (Google's ML Goodput).

    Raises ZeroDivisionError without any time.
    """
    return useful / wall


def effective_price(spent: float, gpus: int, useful_h: float) -> float:
    """Return the cost of a useful GPU-hour."""
    return spent / (gpus * useful_h)


def storage(gb: float, per_gb_month: float, days: float, month_d: float = 730 / 24) -> float:
    """Return the cost of stored data for so many days, prorated by a month of that length."""
    return gb * per_gb_month * days / month_d


def expected_loss(hazard_per_h: float, recovery_h: float, every_h: float, save_h: float) -> float:
    """Return the fraction of time that interruptions take: hazard * (R + tau / 2 + C).

    On average half of the time between two saves is replayed.
    """
    return hazard_per_h * (recovery_h + every_h / 2 + save_h)


def best_pause_h(hazard_per_h: float, save_h: float) -> float:
    """Return the cheapest checkpoint interval in hours: sqrt(2 C / hazard) (Young, 1974)."""
    return math.sqrt(2 * save_h / hazard_per_h)


def spot_pays(spot: float, on_demand: float, overhead: float) -> bool:
    """Return whether spot with an overhead (saves and losses, of 1) is the cheaper one."""
    return overhead < 1 and spot / (1 - overhead) < on_demand


def break_even_mtti_h(loss_h: float, discount: float) -> float:
    """Return the mean time between interruptions above which the discount outweighs their cost.

    Each interruption takes `loss_h`.
    """
    return loss_h / discount


def effective_saving(discount: float, save_overhead: float, resume_overhead: float) -> float:
    """Return what remains of a discount when saves and resumes make the run longer."""
    return 1 - (1 - discount) * (1 + save_overhead) * (1 + resume_overhead)


def overhead_for(discount: float, saving: float) -> float:
    """Return how much longer the run must be for a discount to end as that saving."""
    return (1 - saving) / (1 - discount) - 1


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
