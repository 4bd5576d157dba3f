"""`spotctl cost`: the cost of jobs, and its sub-commands."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import complete_job, connect
from spotd.api_client.wording import completion_pairs
from spotd.api_routes import routes
from spotd.base.text import money, percent, place, size, spent
from spotd.cli import budgets, cost_compare, cost_export, cost_reconcile, cost_report
from spotd.cli.diagnosis import idle_text
from spotd.cli.groups import Group
from spotd.cli.render import (
    HELP,
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_pairs,
    print_table,
)

_COLUMNS = (
    Column("JOB", rank=0),
    Column("HOURS", right=True, rank=2),
    Column("COST", right=True, rank=0),
    Column("ON-DEMAND", right=True, rank=2),
    Column("SAVED", right=True, rank=1),
    Column("PRICE OFF", right=True, rank=3),
)
_NODE_COLUMNS = (
    Column("GEN", right=True, rank=1),
    Column("WHERE", wrap=True, rank=0),
    Column("AS", rank=1),
    Column("HOURS", right=True, rank=2),
    Column("COST", right=True, rank=0),
    Column("LIST", right=True, rank=3),
    Column("BEST OD", right=True, rank=3),
)


class CostGroup(Group):
    """A first argument that is no sub-command is a job of `show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["show", *args]
        return list(super().parse_args(ctx, args))


app = typer.Typer(cls=CostGroup, rich_markup_mode=None, add_completion=False, context_settings=HELP)
app.command()(cost_report.report)
app.command()(cost_compare.compare)
app.command()(cost_export.export)
app.command()(cost_reconcile.reconcile)
app.command()(budgets.budget)


@app.callback()
def cost() -> None:
    """Show what jobs cost, and would have cost on demand.

    Without a sub-command, or with a job's name, this is `spotctl cost show`.

    \b
    Example:
      spotctl cost
      spotctl cost gpt
      spotctl cost report --since 30d
    """


@app.command()
def show(
    ctx: typer.Context,
    job: str = typer.Argument(
        "", metavar="JOB", help="Show this job in detail.", autocompletion=complete_job
    ),
    limit: int = typer.Option(100, min=1, metavar="N", help="Show at most N jobs, the newest."),
    output: Output = output_option(),
) -> None:
    """Show what jobs cost, and with JOB also its machines.

    ON-DEMAND is what the surviving steps would have cost on demand in the same places. Time lost to
    preemptions is paid here and would not be paid there, so SAVED never exceeds PRICE OFF. With
    JOB, the cheapest place that has such a machine is compared as well. Hours from a reservation
    without extra cost are "prepaid" and no saving. Amounts are estimates from prices and times
    until a bill confirms them. IDLE, with JOB, is the cost of its GPUs while they did nothing,
    where it was measured.

    A running JOB also shows its forecast: dollars per hour now and in the mean of 24 h, the
    remaining steps, and when it ends at what cost, with the range of nine of ten outcomes. It is
    based on the job's own steps, interruptions and prices, and on the interruption rate of such
    machines here. If the job file does not say how much work there is, no end is forecast.

    \b
    Example:
      spotctl cost show
      spotctl cost show gpt
    """
    with connect(ctx) as client:
        data = (
            client.call(routes.JOB_COST(job=job))
            if job
            else client.call(routes.ALL_COSTS(), query={"limit": limit})
        )
    emit(data, output, lambda: _print_job_cost(data) if job else _print_jobs(data), "job")


def _print_jobs(data: dict[str, Any]) -> None:
    if not data["items"]:
        print_message("no jobs")
        return
    print_table(_COLUMNS, [_row(item) for item in data["items"]])
    print_message(f"{money(data['spend_usd'])} in all{_hidden_jobs(data)}")


def _hidden_jobs(data: dict[str, Any]) -> str:
    """Return the note on jobs that the sum includes and the table does not show."""
    missing = data["total"] - len(data["items"])
    if not missing:
        return ""
    return f", with {missing} not shown here: spotctl cost --limit {data['total']}"


def _row(item: dict[str, Any]) -> list[str]:
    approximate = "~" if item["estimated"] else ""
    return [
        item["job"],
        f"{item['paid_hours']:.2f}",
        approximate + money(item["spend_usd"]),
        money(item["on_demand_usd"]),
        percent(item["saving"]),
        percent(item["discount"]),
    ]


def _print_job_cost(item: dict[str, Any]) -> None:
    useful = item["useful_hours"]
    so_far = " so far" if item["estimated"] else ""
    print_pairs(
        [
            ("job", item["job"]),
            ("cost", spent(item["spend_usd"], item["max_cost_usd"], so_far)),
            ("checkpoints", _storage_costs(item["carried_usd"])),
            ("paid", f"{item['paid_hours']:.3f} h"),
            ("prepaid", _prepaid(item)),
            ("useful", "" if useful is None else f"{useful:.3f} h of steps that survive"),
            *completion_pairs(item),
            ("on demand", _on_demand(item)),
            ("list price", f"{money(item['list_usd'])} for the same hours, same place"),
            ("best on demand", f"{money(item['best_on_demand_usd'])} for the same hours"),
            ("saved", percent(item["saving"])),
            ("price off", percent(item["discount"])),
            ("kept", _stored_checkpoints(item.get("kept") or {})),
            ("idle", idle_text(item.get("use"))),
        ]
    )
    if item["nodes"]:
        print()
        print_table(_NODE_COLUMNS, [_node_row(node) for node in item["nodes"]])


def _storage_costs(usd: float) -> str:
    return f"{money(usd)} on top for storage, requests and egress; limits count it" if usd else ""


def _prepaid(item: dict[str, Any]) -> str:
    """Return the hours from reservations as text; empty for none."""
    hours = item["prepaid_hours"]
    note = "out of reservations, which are on the cloud's own bill: no part of cost and savings"
    return f"{hours:.3f} h of these {note}" if hours else ""


def _stored_checkpoints(stored: dict[str, Any]) -> str:
    """Return the cost of stored checkpoints as text; empty if it is unknown or there are none."""
    usd_per_month = stored.get("usd_per_month")
    if usd_per_month is None or not stored["checkpoints"]:
        return ""
    count = f"{stored['checkpoints']} checkpoint{'s' if stored['checkpoints'] > 1 else ''}"
    summary = f"{count}, {size(stored['bytes'])}: about {money(usd_per_month)} a month on top"
    return f"{summary}, by list ({stored['price_of']})"


def _on_demand(item: dict[str, Any]) -> str:
    if item["on_demand_usd"] is None:
        return "not known: no report of the first steps (none made, or no longer retained)"
    same_place, best = money(item["on_demand_usd"]), money(item["on_demand_best_usd"])
    return f"{same_place} for the steps that survive, in the same places; {best} in the cheapest"


def _node_row(node: dict[str, Any]) -> list[str]:
    return [
        str(node["generation"]) + (f".{node['rank']}" if node["rank"] else ""),
        place(node),
        node["capacity_type"],
        f"{node['paid_hours']:.3f}",
        "prepaid" if node["prepaid_hours"] and not node["spend_usd"] else money(node["spend_usd"]),
        money(node["list_usd"]),
        money(node["best_on_demand_usd"]),
    ]
