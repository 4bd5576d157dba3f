"""What a policy's costs on spot traces come to, beside a reference and the optimum.

Arrays are one value a case: dollars of the job. A case is one job in one window of one series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Dollars = NDArray[np.float64]
Half = Literal["all", "first", "second"]
DRAWS = 1000
SEED = 0  # of the draws, so that a figure is the same each time
INTERVAL_PCT = (5, 95)


@dataclass(frozen=True)
class Bounds:
    """What the cases cost on demand alone (the counterfactual), by the reference policy, and with
    full knowledge (None: that was not reckoned); `blocks` is the number of the independent stretch
    of time that each is of."""

    on_demand: Dollars
    reference: Dollars
    optimum: Dollars | None
    blocks: NDArray[np.intp]


@dataclass(frozen=True)
class Score:
    """A policy on one suite; a missed deadline costs twice on-demand.

    `ratio` is the mean of cost / on-demand, `omni` that of cost / optimum, `closed` the share of
    the gap between reference and optimum (in `ratio`) that is closed, None where there is no gap;
    all but `ratio` are None without an optimum.
    `ci90` is the interval of `closed` over blocks; with one block there is none. `guarded` are
    cases in which the simulator's own guard had to start on-demand, or in which the deadline was
    missed; None of costs that others measured.
    """

    policy: str
    ratio: float
    omni: float | None
    closed: float | None
    ci90: tuple[float, float] | None
    mean_usd: float
    missed: int
    guarded: int | None


def within(cases: Sequence[Mapping[str, Any]], half: Half) -> list[int]:
    """The indices of the cases whose whole window, deadline included, lies in that half of time."""
    kept = []
    for index, case in enumerate(cases):
        middle = len(case["avail"][0]) // 2
        end = case["start"] + int(case["deadline_s"] / case["gap"])
        if half == "all" or (end <= middle if half == "first" else case["start"] >= middle):
            kept.append(index)
    return kept


def blocks_of(cases: Sequence[Mapping[str, Any]]) -> NDArray[np.intp]:
    """The block of each case, counted from 0. Windows overlap, so that cases are far from
    independent; windows of a series that begin within the longest deadline are one block."""
    longest = max(int(case["deadline_s"] / case["gap"]) for case in cases)
    keys = [(case["series"], case["start"] // longest) for case in cases]
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    return np.array([numbers[key] for key in keys], dtype=np.intp)


def score(
    policy: str, cost: Dollars, bounds: Bounds, missed: int = 0, guarded: int | None = None
) -> Score:
    """The figures of a policy whose cases cost `cost`, as Score says."""
    ratio, reference = cost / bounds.on_demand, bounds.reference / bounds.on_demand
    omni = closed = ci90 = None
    if bounds.optimum is not None:
        optimum = bounds.optimum / bounds.on_demand
        omni = float((cost / bounds.optimum).mean())
        gap = float(reference.mean() - optimum.mean())
        if gap > 1e-12:
            closed = float(reference.mean() - ratio.mean()) / gap
        ci90 = interval(reference - ratio, reference - optimum, bounds.blocks)
    return Score(
        policy=policy,
        ratio=float(ratio.mean()),
        omni=omni,
        closed=closed,
        ci90=ci90,
        mean_usd=float(cost.mean()),
        missed=missed,
        guarded=guarded,
    )


def interval(gained: Dollars, gap: Dollars, blocks: NDArray[np.intp]) -> tuple[float, float] | None:
    """The bootstrap's 90 % interval of sum(gained) / sum(gap), whole blocks drawn with return."""
    count = int(blocks.max()) + 1
    if count < 2:
        return None
    drawn = np.random.default_rng(SEED).integers(0, count, (DRAWS, count))
    above = np.bincount(blocks, gained, count)[drawn].sum(1)
    below = np.bincount(blocks, gap, count)[drawn].sum(1)
    real = below > 1e-12
    if not real.any():
        return None
    low, high = np.percentile(above[real] / below[real], INTERVAL_PCT)
    return float(low), float(high)
