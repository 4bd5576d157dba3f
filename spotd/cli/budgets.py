"""`spotctl budget`: what each budget has spent, its forecast, and approvals to exceed it."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import JOB, connect
from spotd.api_routes import routes
from spotd.base.text import money, percent
from spotd.cli.groups import group
from spotd.cli.local_time import instant
from spotd.cli.render import (
    Cell,
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_table,
)

app = group(invoke_without_command=True)

_COLUMNS = (
    Column("BUDGET", wrap=True, rank=0),
    Column("STATE", rank=0),
    Column("OF", rank=2),
    *(Column(title, right=True, rank=0) for title in ("A MONTH", "SPENT", "")),
    *(Column(title, right=True, rank=3) for title in ("NOW", "24 H MEAN")),
    Column("AT THE END", right=True),
    Column("10 % TO 90 %", right=True, rank=1),
    Column("USED UP"),
)


_STATE_STYLES = {"within": "green", "will exceed": "yellow", "used up": "red"}


def budget(ctx: typer.Context, output: Output = output_option()) -> None:
    """Show each budget's spending this month, its rate, and its forecast.

    NOW and 24 H MEAN are dollars per hour. AT THE END is the forecast for the end of the month at
    the present rate; its interval uses the rates of the last days.

    \b
    Example:
      spotctl cost budget
    """
    _show(ctx, output)


@app.callback()
def budgets(ctx: typer.Context, output: Output = output_option()) -> None:
    """Show each budget's spending this month and its forecast; approve that a job exceeds one.

    \b
    Example:
      spotctl budget
      spotctl budget approve gpt
    """
    if ctx.invoked_subcommand is None:
        _show(ctx, output)


@app.command("ls")
def list_(ctx: typer.Context, output: Output = output_option()) -> None:
    """List them, as `spotctl budget` alone does.

    \b
    Example:
      spotctl budget ls
    """
    _show(ctx, output)


@app.command("approve")
def approve(ctx: typer.Context, job: str = JOB, output: Output = output_option()) -> None:
    """Approve that a job exceeds a budget, as another admin asked with --override-budget.

    It is for `overrides = "second_person"` in [limits]. The audit has both names.

    \b
    Example:
      spotctl budget approve gpt
    """
    with connect(ctx) as client:
        data = client.call(routes.APPROVE_BUDGET(job=job))
    message = f"{data['job']} runs, beyond a budget: {data['override']}"
    emit(data, output, lambda: print_message(message), "job")


def _show(ctx: typer.Context, output: Output) -> None:
    with connect(ctx) as client:
        data = client.call(routes.LIST_BUDGETS())
    emit(data, output, lambda: _print(data["items"]), "name")


def _print(items: list[dict[str, Any]]) -> None:
    if not items:
        print_message("no budget is configured: [budgets.NAME] in config.toml")
        return
    print_table(_COLUMNS, [_row(row) for row in items])


def _state_cell(row: dict[str, Any]) -> Cell:
    """Return the state of a budget; a forecast beyond its limit is a warning."""
    return Cell(row["state"], _STATE_STYLES[row["state"]])


def _row(row: dict[str, Any]) -> list[Cell | str]:
    rates = (row["usd_per_hour"], row["mean_usd_per_hour"])
    low, high = money(row["forecast_low_usd"]), money(row["forecast_high_usd"])
    return [
        row["name"],
        _state_cell(row),
        ", ".join(part for part in (row["user"], row["project"]) if part) or "all",
        money(row["budget_usd"]),
        money(row["spent_usd"]),
        percent(row["spent_usd"] / row["budget_usd"]),
        *(f"{money(rate)}/h" for rate in rates),
        money(row["forecast_usd"]),
        f"{low} to {high}",
        instant(row["used_up_at"], "minutes") if row["used_up_at"] else "not this month",
    ]
