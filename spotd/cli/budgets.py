"""`spotctl cost budget`."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.base.text import money, percent
from spotd.cli.render import Column, Output, emit, output_option, print_table, say

_COLUMNS = (
    Column("BUDGET", cut=True),
    Column("OF"),
    *(Column(title, right=True) for title in ("A MONTH", "SPENT", "", "NOW", "24 H MEAN")),
    Column("AT THE END", right=True),
    Column("10 % TO 90 %", right=True),
    Column("USED UP"),
)


def budget(ctx: typer.Context, output: Output = output_option()) -> None:
    """Show each budget of the configuration: what is spent this month, how fast, and where it ends.

    NOW and 24 H MEAN are dollars an hour. AT THE END is what will be spent by the end of the month
    at the present rate; the interval is by the rates of the last days.

    \b
    Example:
      spotctl cost budget
    """
    with connect(ctx) as client:
        data = client.get("/v1/budgets")
    emit(data, output, lambda: _print(data["items"]), "name")


def _print(items: list[dict[str, Any]]) -> None:
    if not items:
        say("no budget is configured: [budgets.NAME] in config.toml")
        return
    print_table(_COLUMNS, [_row(one) for one in items])


def _row(one: dict[str, Any]) -> list[str]:
    rates = (one["usd_per_hour"], one["mean_usd_per_hour"])
    low, high = money(one["forecast_low_usd"]), money(one["forecast_high_usd"])
    return [
        one["name"],
        ", ".join(part for part in (one["user"], one["project"]) if part) or "all",
        money(one["budget_usd"]),
        money(one["spent_usd"]),
        percent(one["spent_usd"] / one["budget_usd"]),
        *(f"{money(rate)}/h" for rate in rates),
        money(one["forecast_usd"]),
        f"{low} to {high}",
        (one["used_up_at"] or "not this month")[:16].replace("T", " "),
    ]
