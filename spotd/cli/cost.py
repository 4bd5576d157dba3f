"""`spotctl cost`: what jobs cost; and its sub-commands."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from spotd.api_client.client import complete_job, connect, job_path
from spotd.api_client.wording import outlook_pairs
from spotd.base.text import money, percent, place, size, spent
from spotd.cli import budgets, cost_compare, cost_export, cost_reconcile, cost_report
from spotd.cli.diagnosis import idle_words
from spotd.cli.render import (
    HELP,
    Column,
    Output,
    emit,
    output_option,
    print_pairs,
    print_table,
    say,
)

_COLUMNS = (
    Column("JOB", cut=True),
    Column("HOURS", right=True),
    Column("COST", right=True),
    Column("ON-DEMAND", right=True),
    Column("SAVED", right=True),
    Column("PRICE OFF", right=True),
)
_NODE_COLUMNS = (
    Column("GEN", right=True),
    Column("WHERE", cut=True, tail=8),
    Column("AS"),
    Column("HOURS", right=True),
    Column("COST", right=True),
    Column("LIST", right=True),
    Column("BEST OD", right=True),
)


class CostGroup(TyperGroup):
    """What is no sub-command is a job of `show`."""

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
    job: str = typer.Argument("", metavar="JOB", help="In detail.", autocompletion=complete_job),
    limit: int = typer.Option(100, min=1, metavar="N", help="Show so many jobs, the newest."),
    output: Output = output_option(),
) -> None:
    """Show what jobs cost, each with its machines.

    ON-DEMAND is what the steps that survive would have cost on demand in the same places: the time
    that preemptions took is paid here, and would not have been paid there. So SAVED is never more
    than PRICE OFF. With a job, the cheapest place that has such a machine is compared as well.
    Hours out of a reservation that cost nothing more are "prepaid", and no saving.
    Amounts are estimates from prices and times, until a bill says otherwise. IDLE, with a job, is
    what its GPUs cost while they did nothing, as far as that was measured.

    With a job that runs, also how it goes on: dollars an hour now and in the mean of 24 h, the
    steps that are left, and when it is done at what cost, with what nine of ten outcomes lie
    between; by its own steps, interruptions and prices, and how often such machines were taken
    away here. Where the job file does not say how much there is to do, no end is foretold.

    \b
    Example:
      spotctl cost show
      spotctl cost show gpt
    """
    with connect(ctx) as client:
        data = client.get(job_path(job, "/cost")) if job else client.get("/v1/costs", limit=limit)
    emit(data, output, lambda: _print_one(data) if job else _print_all(data), "job")


def _print_all(data: dict[str, Any]) -> None:
    if not data["items"]:
        say("no jobs")
        return
    print_table(_COLUMNS, [_row(item) for item in data["items"]])
    say(f"{money(data['spend_usd'])} in all{_hidden(data)}")


def _hidden(data: dict[str, Any]) -> str:
    """What the sum has and the table has not."""
    missing = data["total"] - len(data["items"])
    if not missing:
        return ""
    return f", with {missing} not shown here: spotctl cost --limit {data['total']}"


def _row(item: dict[str, Any]) -> list[str]:
    about = "~" if item["estimated"] else ""
    return [
        item["job"],
        f"{item['paid_hours']:.2f}",
        about + money(item["spend_usd"]),
        money(item["on_demand_usd"]),
        percent(item["saving"]),
        percent(item["discount"]),
    ]


def _print_one(item: dict[str, Any]) -> None:
    useful = item["useful_hours"]
    running = " so far" if item["estimated"] else ""
    print_pairs(
        [
            ("job", item["job"]),
            ("cost", spent(item["spend_usd"], item["max_cost_usd"], running)),
            ("checkpoints", _carried(item["carried_usd"])),
            ("paid", f"{item['paid_hours']:.3f} h"),
            ("prepaid", _prepaid(item)),
            ("useful", "" if useful is None else f"{useful:.3f} h of steps that survive"),
            *outlook_pairs(item),
            ("on demand", _on_demand(item)),
            ("list price", f"{money(item['list_usd'])} for the same hours, same place"),
            ("best on demand", f"{money(item['best_on_demand_usd'])} for the same hours"),
            ("saved", percent(item["saving"])),
            ("price off", percent(item["discount"])),
            ("kept", _kept(item.get("kept") or {})),
            ("idle", idle_words(item.get("use"))),
        ]
    )
    if item["nodes"]:
        print()
        print_table(_NODE_COLUMNS, [_node_row(node) for node in item["nodes"]])


def _carried(usd: float) -> str:
    return f"{money(usd)} on top for storage, requests and egress; limits count it" if usd else ""


def _prepaid(item: dict[str, Any]) -> str:
    """Hours out of reservations: "" for none."""
    hours = item["prepaid_hours"]
    told = "out of reservations, which are on the cloud's own bill: no part of cost and savings"
    return f"{hours:.3f} h of these {told}" if hours else ""


def _kept(kept: dict[str, Any]) -> str:
    """What the checkpoints that are kept cost on top; "" where that is not known, or nothing is."""
    month = kept.get("usd_per_month")
    if month is None or not kept["checkpoints"]:
        return ""
    many = f"{kept['checkpoints']} checkpoint{'s' if kept['checkpoints'] > 1 else ''}"
    each = f"{many}, {size(kept['bytes'])}: about {money(month)} a month on top"
    return f"{each}, by list ({kept['price_of']})"


def _on_demand(item: dict[str, Any]) -> str:
    if item["on_demand_usd"] is None:
        return "not known: no report of the first steps (none made, or no longer kept)"
    same, best = money(item["on_demand_usd"]), money(item["on_demand_best_usd"])
    return f"{same} for the steps that survive, in the same places; {best} in the cheapest"


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
