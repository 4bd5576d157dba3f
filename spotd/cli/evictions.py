"""The times of machines that got a notice, as `spotctl show` has them."""

from __future__ import annotations

from typing import Any

from spotd.cli.render import Cell, Column, print_table

_COLUMNS = (
    Column("NOTICE OF"),
    *(Column(title) for title in ("HEARD", "ASKED", "RELEASED", "ENDED", "GONE")),
)
_UNKNOWN = Cell("unknown", "dim")


def print_evictions(found: list[dict[str, Any]]) -> None:
    """Nothing where there was no notice. What is not on record is unknown, or yet to come."""
    if not found:
        return
    print()
    rows = []
    for one in found:
        who = str(one["generation"]) + (f".{one['rank']}" if one["rank"] else "")
        times = (one[name] for name in ("notice", "asked", "released", "ended", "gone"))
        rows.append([who, *(_UNKNOWN if at is None else _clock(at) for at in times)])
    print_table(_COLUMNS, rows)


def _clock(at: str) -> str:
    """To the second, UTC: all five of one machine lie within minutes."""
    return f"{at[5:10]} {at[11:19]}Z"
