"""What the benchmarks reckon with."""

from __future__ import annotations

import math
from collections.abc import Sequence


def p95(values: Sequence[float]) -> float:
    """The 95th percentile by nearest rank: the smallest value that 95 % do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]
