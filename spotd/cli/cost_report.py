"""`spotctl cost report`: line items, hours by use and savings, from the ledger or from a file."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import complete_job, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import money, percent
from spotd.cli.durations import duration_s
from spotd.cli.render import (
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_pairs,
    print_table,
    print_text,
)
from spotd.money.formulas import payback

_ITEMS = (
    Column("PHASE", wrap=True, rank=0),
    Column("WHAT", wrap=True, rank=0),
    Column("QUANTITY", right=True, rank=2),
    Column("RATE", right=True, rank=2),
    Column("COST", right=True, rank=0),
    Column("", wrap=True, rank=1),
)
_JOBS = (
    Column("JOB", rank=0),
    *(Column(title, right=True, rank=3) for title in ("COMPUTE", "STORAGE", "EGRESS", "CONTROL")),
    Column("TOTAL", right=True, rank=0),
    Column("$/USEFUL GPU-H", right=True, rank=2),
    Column("SAVED", right=True, rank=1),
    Column("PRICE OFF", right=True, rank=2),
)
_USERS = (Column("USER"), Column("COST", right=True))
_PROJECTS = (Column("PROJECT"), Column("COST", right=True))
_USES = (
    Column("HOURS OF"),
    *(Column(title, right=True) for title in ("MACHINES", "GPUS", "COST", "SHARE")),
)
_SAVINGS = (Column("SAVED BY"), Column("", right=True), Column("COMPARED WITH", wrap=True))
_ON_DEMAND = (
    Column("ON DEMAND"),
    Column("FOR THE", wrap=True),
    *(Column(title, right=True) for title in ("HOURS", "COST", "SAVED", "PRICE OFF")),
)


class ReportGroup(str, Enum):
    """The grouping of the totals of all jobs."""

    JOB = "job"
    USER = "user"
    PROJECT = "project"
    PROVIDER = "provider"
    DAY = "day"


def report(
    ctx: typer.Context,
    job: str = typer.Argument(
        "", metavar="[JOB]", help="Report this job alone.", autocompletion=complete_job
    ),
    since: str = typer.Option(
        "", metavar="WHEN", help="Start: 30d ago, or a day like 2026-11-01 (UTC)."
    ),
    until: str = typer.Option("", metavar="WHEN", help="End. Default: now."),
    file: Path | None = typer.Option(
        None,
        "--file",
        metavar="FILE",
        help="Read the line items from a TOML file instead of the ledger.",
    ),
    by: ReportGroup | None = typer.Option(
        None, "--by", help="Only print the totals of all jobs by this; days are UTC."
    ),
    outlay: float = typer.Option(
        0.0,
        "--outlay",
        min=0.0,
        metavar="USD",
        help="Show after how many such runs this outlay is earned back.",
    ),
    output: Output = output_option(),
) -> None:
    """Report what was paid for: line items, hours by use, and what on-demand would have cost.

    Hours add up to the billed hours, line items to the ledger's total. A saving never exceeds the
    price discount. Amounts are estimates until a bill was reconciled. See docs/cost.md for the
    method.

    \b
    Example:
      spotctl cost report gpt
      spotctl cost report --since 30d
      spotctl cost report --since 30d --by day
      spotctl cost report gpt --outlay 4800
    """
    if by and (job or file):
        raise UserError(
            "--by reports the totals of all jobs", "leave out the job, or --file", ExitCode.USAGE
        )
    if file is not None:
        if job or since or until:
            raise UserError("--file reports that file alone", "leave out the rest", ExitCode.USAGE)
        data = {"apiVersion": "spotd/v1", "kind": "CostReport", **_file_report(file)}
    else:
        window = {"since_us": when_us(since, "--since"), "until_us": when_us(until, "--until")}
        with connect(ctx) as client:
            if job:
                data = client.call(routes.JOB_COST_REPORT(job=job), query=window)
            else:
                query = {**window, "by": by.value if by else ""}
                data = client.call(routes.COST_REPORT(), query=query)
    data |= {"outlay": _outlay(outlay, data)} if outlay else {}
    emit(data, output, lambda: _print_by(data, by) if by else print_report(data), "job")


def _outlay(usd: float, data: dict[str, Any]) -> dict[str, Any]:
    """Return after how many such runs the outlay is earned back; None for never."""
    saved = (data["savings"] or {}).get("total_usd") or 0.0
    return {"usd": usd, "runs": round(payback(usd, saved), 2) if saved > 0 else None}


def _print_by(data: dict[str, Any], by: ReportGroup) -> None:
    """Print one table whose rows add up to the total."""
    rows = data["jobs"] if by is ReportGroup.JOB else data[f"{by.value}s"]
    print_pairs([("total", f"{money(data['total_usd'])}, {_state(data)}")])
    if rows:
        print()
        columns = (Column(by.value.upper(), wrap=True), Column("COST", right=True))
        table = [[row[by.value] or "-", money(row["total_usd"])] for row in rows]
        print_table(columns, [*table, ["all", money(data["total_usd"])]])


def when_us(text: str, option: str) -> int | str:
    """Return microseconds since the epoch; "" for an empty text. Raises UserError."""
    if not text:
        return ""
    if text[:4].isdecimal() and "-" in text:
        try:
            day = datetime.fromisoformat(text)
        except ValueError:
            day = None
        if day is None:
            raise UserError(
                f"{option}: {text!r} is not a day", f"{option} 2026-11-01", ExitCode.USAGE
            )
        return int((day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp() * 1e6)
    return int((time.time() - duration_s(text, option, "30d, or 2026-11-01")) * 1e6)


def _file_report(file: Path) -> dict[str, Any]:
    from spotd.cli.external_runs import read_case
    from spotd.money.document import report_data
    from spotd.money.report import report_of

    account, claim = read_case(file)
    return report_data(report_of(account), claim)


def print_report(data: dict[str, Any]) -> None:
    """Print the report as tables."""
    if not data.get("jobs", True):
        print_message("no machines in that time")
    print_pairs(_head(data))
    for columns, rows in (
        (_JOBS, [_job_row(row) for row in data.get("jobs", ())]),
        (_USERS, _sum_rows(data, "user")),
        (_PROJECTS, _sum_rows(data, "project")),
        (_ITEMS, [_item_row(row) for row in data.get("items", ())]),
        (_USES, [_use_row(row, data) for row in data["hours"]]),
        (_ON_DEMAND, [_on_demand_row(row) for row in data["on_demand"]]),
        (_SAVINGS, _saving_rows(data["savings"])),
    ):
        if rows:
            print()
            print_table(columns, rows)
    if data["unknown"]:
        print()
    for text in data["unknown"]:
        print_text(f"note: {text}")
    print("".join(f"\n{line}" for line in claim_lines(data)).lstrip("\n"), end="")
    if "claim" in data:
        print()


def _head(data: dict[str, Any]) -> list[tuple[str, str]]:
    billed = (
        f"{data['billed_node_hours']:,.3f} machine-hours, {data['billed_gpu_hours']:,.1f} of GPUs"
    )
    per_useful = money(data["usd_per_useful_gpu_hour"])
    hedge_losers = data["hedge_losers"]
    hedge_text = (
        f"{hedge_losers['machines']} requested in parallel and not needed: "
        f"{money(hedge_losers['usd'])}"
    )
    prepaid = data["prepaid_node_hours"]
    return [
        ("job", data["job"]),
        ("total", f"{money(data['total_usd'])}, {_state(data)}"),
        ("per useful GPU-hour", per_useful if per_useful != "-" else _no_headline(data)),
        ("per billed GPU-hour", money(data["usd_per_billed_gpu_hour"])),
        ("billed", billed),
        ("prepaid", f"{prepaid:.3f} of these hours: no cost, and no saving" if prepaid else ""),
        ("goodput", percent(data["goodput"])),
        ("hedge losers", hedge_text if hedge_losers["machines"] else ""),
        ("saved", _saved(data)),
        ("price off", percent(data["discount"])),
        ("more such runs", _more_runs(data["savings"])),
        ("kept by saves", _protected_work(data.get("protected"))),
        ("outlay", _outlay_text(data.get("outlay"))),
    ]


def _more_runs(savings: dict[str, Any] | None) -> str:
    """Return how many more such runs the saving would pay for."""
    if not savings or not savings["more_runs"]:
        return ""
    return f"{savings['more_runs']:.2f} for the {money(savings['total_usd'])} that were saved"


def _protected_work(protected: dict[str, Any] | None) -> str:
    if not protected or not protected["interruptions"]:
        return ""
    count = protected["interruptions"]
    replayed = money(protected["replayed_usd"])
    work = f"{money(protected['usd'])} of work in {count} interruption{'s' * (count > 1)}"
    return f"{work}; {replayed} was trained again"


def _outlay_text(outlay: dict[str, Any] | None) -> str:
    if not outlay:
        return ""
    runs = outlay["runs"]
    after = "never: nothing was saved" if runs is None else f"after {runs:,.2f} such runs"
    return f"{money(outlay['usd'])} is earned back {after}"


def _no_headline(data: dict[str, Any]) -> str:
    return "not known: no GPUs, or hours of which no steps are on record" if data["hours"] else ""


def _state(data: dict[str, Any]) -> str:
    if not data["provisional"]:
        return "reconciled"
    confirmed = data["invoiced_usd"]
    reconciled_part = f"; {money(confirmed)} of it reconciled" if confirmed else ""
    return f"provisional: by prices and times, not by a bill{reconciled_part}"


def _saved(data: dict[str, Any]) -> str:
    if data["saving"] is None:
        return ""
    return f"{percent(data['saving'])}, against the {data['saving_basis']} on demand"


def _item_row(item: dict[str, Any]) -> list[str]:
    marks = "hedge loser" if item["hedge_lost"] else "" if item["estimated"] else "reconciled"
    unit = {"Hours": "h", "GB-Months": "GB-mo"}.get(item["unit"], item["unit"])
    quantity = f"{item['quantity']:,.3f} {unit}" if item["unit"] else "-"
    rate = "-" if item["rate_usd"] is None else money(item["rate_usd"])
    return [item["phase"], item["what"], quantity, rate, money(item["cost_usd"]), marks]


def _job_row(row: dict[str, Any]) -> list[str]:
    names = ("compute", "storage", "egress", "control", "total")
    return [
        row["job"],
        *(money(row[f"{name}_usd"]) for name in names),
        money(row["usd_per_useful_gpu_hour"]),
        percent(row["saving"]),
        percent(row["discount"]),
    ]


def _sum_rows(data: dict[str, Any], by: str) -> list[list[str]]:
    """Return one row for each group; none for a single group, which is the total."""
    rows = data.get(f"{by}s", ())
    return [[row[by] or "-", money(row["total_usd"])] for row in rows] if len(rows) > 1 else []


def _use_row(row: dict[str, Any], data: dict[str, Any]) -> list[str]:
    billed = data["billed_node_hours"]
    share = row["node_hours"] / billed if billed else None
    times = [f"{row[name]:,.3f}" for name in ("node_hours", "gpu_hours")]
    return [row["use"], *times, money(row["cost_usd"]), percent(share)]


def _on_demand_row(row: dict[str, Any]) -> list[str]:
    amounts = [f"{row['node_hours']:,.3f}", money(row["total_usd"])]
    return [row["name"], row["basis"], *amounts, percent(row["saving"]), percent(row["discount"])]


def _saving_rows(savings: dict[str, Any] | None) -> list[list[str]]:
    """Return one row for each cause of a saving; they add up."""
    if not savings:
        return []
    rows = [
        [part["name"], "-" if part["usd"] is None else money(part["usd"]), part["against"]]
        for part in savings["parts"]
    ]
    return [*rows, ["all", money(savings["total_usd"]), percent(savings["fraction"])]]


def claim_lines(data: dict[str, Any]) -> list[str]:
    """Return what the claim says, and how much of it has no line item."""
    claim = data.get("claim")
    if not claim:
        return []
    total, no_line_item = claim["total_usd"], "has no line item"
    unexplained = money(claim["without_line_item_usd"])
    share = f"{claim['without_line_item'] * 100:.0f} %"
    lines = [f"claimed in all: {money(total)}, of which {unexplained} ({share}) {no_line_item}"]
    if claim["baseline_usd"]:
        unexplained = money(claim["baseline_without_line_item_usd"])
        share = f"{claim['baseline_without_line_item'] * 100:.0f} %"
        claimed = money(claim["baseline_usd"])
        lines.append(f"claimed instead: {claimed}, of which {unexplained} ({share}) {no_line_item}")
    if claim["saving"]:
        by_line_items = percent(claim["saving_by_line_items"])
        lines.append(
            f"claimed saving: {percent(claim['saving'])}; by line items {by_line_items}, the rest "
            f"{no_line_item}"
        )
    return lines
