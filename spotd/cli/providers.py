"""`spotctl providers`: notice times and egress prices of each cloud."""

from __future__ import annotations

from typing import Any

import typer

from providers.dollars import format_usd
from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.text import clean
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_message, print_table

_COLUMNS = (
    Column("CLOUD", rank=0),
    Column("CONFIGURED AS", wrap=True),
    *(Column(t, right=True, rank=2) for t in ("DOCUMENTED", "GUIDES", "P50", "P10", "OF")),
    Column("COUNTED ON", right=True, rank=0),
    Column("A GB OUT", right=True, rank=0),
    Column("BY", wrap=True, rank=3),
)


def providers(ctx: typer.Context, output: Output = output_option()) -> None:
    """List clouds with the notice time of their spot machines, and egress prices.

    P50 and P10 were observed by this deployment in 30 days: half had less, one of ten had less.
    COUNTED ON is the smaller of P10 and the documented time; claims of guides are not used.
    A GB OUT is the list price of egress, for the first GB of a month.

    \b
    Example:
      spotctl providers
      spotctl providers -o json
    """
    with connect(ctx) as client:
        data = client.call(routes.LIST_PROVIDERS())
    emit(data, output, lambda: _print(data), "name")


def _print(data: dict[str, Any]) -> None:
    print_message("seconds between a preemption notice and the end of a spot machine:")
    print_table(_COLUMNS, [_row(row) for row in data["items"]])


def _row(row: dict[str, Any]) -> list[Cell | str]:
    notice = row["notice_s"]
    claimed = notice["claimed"]
    return [
        row["name"],
        ", ".join(row["providers"]) or "-",
        _seconds(notice["documented"]),
        f"{claimed[0]:.0f} to {claimed[1]:.0f}" if claimed else "-",
        *(_seconds(notice[f"observed_{key}"]) for key in ("p50", "p10")),
        str(notice["count"]),
        _seconds(notice["planned"]),
        _egress(row["egress"]),
        clean(notice["source"] or "only observed"),
    ]


def _egress(price: dict[str, Any] | None) -> str:
    if price is None:
        return "-"
    return "free" if price["zero"] else format_usd(price["usd_per_gb"])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
