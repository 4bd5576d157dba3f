"""Format dollars for people: the one rule for every amount and price that spotd prints."""

from __future__ import annotations

_LEAST = 0.0001  # the smallest amount that four decimals show


def format_usd(usd: float | None, *, signed: bool = False) -> str:
    """Return an amount like $0.0042, $1.23, $1,234.50 or -$0.5000; "-" for None.

    It has four decimals below a dollar and two above; what is smaller than four decimals show, but
    not zero, is <$0.0001 (below zero: >-$0.0001). `signed` amounts have a plus where they are above
    zero. Prices per hour or per GB follow the same rule.
    """
    if usd is None:
        return "-"
    if not usd:
        return "$0.00"
    size = abs(usd)
    if size < _LEAST:
        return f"<${_LEAST:.4f}" if usd > 0 else f">-${_LEAST:.4f}"
    sign = "-" if usd < 0 else "+" if signed else ""
    decimals = 4 if round(size, 4) < 1 else 2
    return f"{sign}${size:,.{decimals}f}"


def format_microusd(microusd: float | None) -> str:
    """Return an amount of micro-USD like `format_usd`."""
    return format_usd(None if microusd is None else microusd / 1e6)
