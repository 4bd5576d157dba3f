"""Round values so that similar situations share a table."""

from __future__ import annotations

from math import log, log2


def rounded(value: float, ratio: float) -> float:
    """Round to a power of `ratio`; values below a thousandth count as that."""
    return float(ratio ** round(log(max(value, 1e-3)) / log(ratio)))


def doubled(least: float, base: float) -> float:
    """`base` times the smallest power of two that makes it no less than `least`."""
    power = round(log2(least / base))
    return base * 2.0 ** (power if base * 2.0**power >= least * (1 - 1e-9) else power + 1)
