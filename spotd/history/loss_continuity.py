"""Test whether losses continue after a resume: their mean against the earlier trend."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

NEAR = 40  # steps that are compared on either side
LEAST = 8  # minimum number of steps on either side
MOST_SIGMAS = 3.0  # above that the losses jump
MOST = 1e100


def is_loss(value: float) -> bool:
    """Return whether a value is a usable loss: finite, with a finite square."""
    return math.isfinite(value) and abs(value) < MOST


def sigmas_off(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return how far the mean of `after` is from the line through `before`, in standard deviations.

    The deviations are of single steps about that line. None for fewer than LEAST of either, or a
    loss that is not a number. Noiseless steps that meet the line are 0 off.
    """
    if min(len(before), len(after)) < LEAST or not all(map(is_loss, (*before, *after))):
        return None
    line = statistics.linear_regression(range(len(before)), before)
    noise = statistics.pstdev(
        loss - (line.intercept + line.slope * at) for at, loss in enumerate(before)
    )
    middle = len(before) + (len(after) - 1) / 2
    off = abs(statistics.mean(after) - (line.intercept + line.slope * middle))
    least = 1e-9 * max(map(abs, before))  # smaller differences are rounding errors
    return 0.0 if off <= least else off / max(noise, least)


def seam_of(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """Return how many sigmas `after` is off, and the bound above which that is a jump; None if
    unknown.

    A bent trend, as early in training, is off its own line without a jump: as far as the second
    half of `before` is off the first half's line, times the square of twice the length.
    """
    half = len(before) // 2
    off, bent = sigmas_off(before, after), sigmas_off(before[:half], before[half:])
    if off is None or bent is None:
        return None
    return off, max(MOST_SIGMAS, 4 * bent)
