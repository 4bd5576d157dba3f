"""`spotctl cost report`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import complete_job, connect, job_path
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import money, percent
from spotd.cli.durations import duration_s
from spotd.cli.render import Column, Output, emit, output_option, print_pairs, print_table, say
from spotd.money.formulas import payback

_ITEMS = (
    Column("PHASE", cut=True),
    Column("WHAT", cut=True),
    Column("QUANTITY", right=True),
    Column("RATE", right=True),
    Column("COST", right=True),
    Column(""),
)
_JOBS = (
    Column("JOB", cut=True),
    *(Column(title, right=True) for title in ("COMPUTE", "STORAGE", "EGRESS", "CONTROL", "TOTAL")),
    *(Column(title, right=True) for title in ("$/USEFUL GPU-H", "SAVED", "PRICE OFF")),
)
_USERS = (Column("USER"), Column("COST", right=True))
_PROJECTS = (Column("PROJECT"), Column("COST", right=True))
_USES = (
    Column("HOURS OF"),
    *(Column(title, right=True) for title in ("MACHINES", "GPUS", "COST", "SHARE")),
)
_SAVINGS = (Column("SAVED BY"), Column("", right=True), Column("AGAINST", cut=True))
_INSTEAD = (
    Column("ON DEMAND"),
    Column("FOR THE", cut=True),
    *(Column(title, right=True) for title in ("HOURS", "COST", "SAVED", "PRICE OFF")),
)


class By(str, Enum):
    """What all jobs are summed up by."""

    JOB = "job"
    USER = "user"
    PROJECT = "project"
    PROVIDER = "provider"
    DAY = "day"


def report(
    ctx: typer.Context,
    job: str = typer.Argument("", metavar="[JOB]", help="One.", autocompletion=complete_job),
    since: str = typer.Option("", metavar="WHEN", help="30d ago, or a day like 2026-11-01 (UTC)."),
    until: str = typer.Option("", metavar="WHEN", help="Up to then; to now if not given."),
    file: Path | None = typer.Option(
        None, "--file", metavar="FILE", help="Line items of a TOML file instead of the ledger."
    ),
    by: By | None = typer.Option(
        None, "--by", help="The sums of all jobs by this alone; a day is one of UTC."
    ),
    outlay: float = typer.Option(
        0.0,
        "--outlay",
        min=0.0,
        metavar="USD",
        help="After how many such runs that is earned back.",
    ),
    output: Output = output_option(),
) -> None:
    """Report what was paid for: line items, hours by use, and two counterfactuals.

    Hours add up to the billed ones, line items to the ledger's total. A saving is never more than
    the price discount. Until a bill was reconciled, amounts are estimates. docs/cost.md has the
    method.

    \b
    Example:
      spotctl cost report gpt
      spotctl cost report --since 30d
      spotctl cost report --since 30d --by day
      spotctl cost report gpt --outlay 4800
    """
    if by and (job or file):
        raise UserError("--by sums all jobs up", "leave out the job, or --file", ExitCode.USAGE)
    if file is not None:
        if job or since or until:
            raise UserError("--file reports that file alone", "leave out the rest", ExitCode.USAGE)
        data = {"apiVersion": "spotd/v1", "kind": "CostReport", **_of_file(file)}
    else:
        window = {"since_us": when_us(since, "--since"), "until_us": when_us(until, "--until")}
        with connect(ctx) as client:
            path = job_path(job, "/cost/report") if job else "/v1/costs/report"
            data = client.get(path, **window, **({"by": by.value} if by else {}))
    data |= {"outlay": _outlay(outlay, data)} if outlay else {}
    emit(data, output, lambda: _print_by(data, by) if by else print_report(data), "job")


def _outlay(usd: float, data: dict[str, Any]) -> dict[str, Any]:
    """After how many runs like these it is earned back; None for never."""
    saved = (data["savings"] or {}).get("total_usd") or 0.0
    return {"usd": usd, "runs": round(payback(usd, saved), 2) if saved > 0 else None}


def _print_by(data: dict[str, Any], by: By) -> None:
    """One table that comes to the total."""
    rows = data["jobs"] if by is By.JOB else data[f"{by.value}s"]
    print_pairs([("total", f"{money(data['total_usd'])}, {_state(data)}")])
    if rows:
        print()
        columns = (Column(by.value.upper(), cut=True), Column("COST", right=True))
        table = [[one[by.value] or "-", _cents(one["total_usd"])] for one in rows]
        print_table(columns, [*table, ["all", _cents(data["total_usd"])]])


def when_us(text: str, option: str) -> int | str:
    """Microseconds since the epoch; "" for no time. Raises UserError."""
    if not text:
        return ""
    if text[:4].isdecimal() and "-" in text:
        try:
            day = datetime.fromisoformat(text)
        except ValueError:
            day = None
        if day is None:
            raise UserError(f"{option}: {text!r} is no day", f"{option} 2026-11-01", ExitCode.USAGE)
        return int((day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp() * 1e6)
    return int((time.time() - duration_s(text, option, "30d, or 2026-11-01")) * 1e6)


def _of_file(file: Path) -> dict[str, Any]:
    from spotd.cli.external_runs import read_case
    from spotd.money.document import report_data
    from spotd.money.report import report_of

    account, claim = read_case(file)
    return report_data(report_of(account), claim)


def print_report(data: dict[str, Any]) -> None:
    """For people."""
    if not data.get("jobs", True):
        say("no machines in that time")
    print_pairs(_head(data))
    for columns, rows in (
        (_JOBS, [_job_row(one) for one in data.get("jobs", ())]),
        (_USERS, _sum_rows(data, "user")),
        (_PROJECTS, _sum_rows(data, "project")),
        (_ITEMS, [_item_row(one) for one in data.get("items", ())]),
        (_USES, [_use_row(one, data) for one in data["hours"]]),
        (_INSTEAD, [_instead_row(one) for one in data["on_demand"]]),
        (_SAVINGS, _saving_rows(data["savings"])),
    ):
        if rows:
            print()
            print_table(columns, rows)
    if data["unknown"]:
        print()
    for text in data["unknown"]:
        print(f"note: {text}")
    print("".join(f"\n{line}" for line in claim_lines(data)).lstrip("\n"), end="")
    if "claim" in data:
        print()


def _head(data: dict[str, Any]) -> list[tuple[str, str]]:
    billed = (
        f"{data['billed_node_hours']:,.3f} machine-hours, {data['billed_gpu_hours']:,.1f} of GPUs"
    )
    per_useful = money(data["usd_per_useful_gpu_hour"])
    losers = data["hedge_losers"]
    lost = f"{losers['machines']} of several asked for at once, not needed: {money(losers['usd'])}"
    prepaid = data["prepaid_node_hours"]
    return [
        ("job", data["job"]),
        ("total", f"{money(data['total_usd'])}, {_state(data)}"),
        ("per useful GPU-hour", per_useful if per_useful != "-" else _no_headline(data)),
        ("per billed GPU-hour", money(data["usd_per_billed_gpu_hour"])),
        ("billed", billed),
        ("prepaid", f"{prepaid:.3f} of these hours: no cost, and no saving" if prepaid else ""),
        ("goodput", percent(data["goodput"])),
        ("hedge losers", lost if losers["machines"] else ""),
        ("saved", _saved(data)),
        ("price off", percent(data["discount"])),
        ("more such runs", _more_runs(data["savings"])),
        ("kept by saves", _kept(data.get("protected"))),
        ("outlay", _earned_back(data.get("outlay"))),
    ]


def _more_runs(savings: dict[str, Any] | None) -> str:
    """What the saving would pay for, at what these runs cost."""
    if not savings or not savings["more_runs"]:
        return ""
    return f"{savings['more_runs']:.2f} for the {money(savings['total_usd'])} that were saved"


def _kept(kept: dict[str, Any] | None) -> str:
    if not kept or not kept["interruptions"]:
        return ""
    times = "1 time" if kept["interruptions"] == 1 else f"{kept['interruptions']} times"
    again = money(kept["replayed_usd"])
    return f"{money(kept['usd'])} of work, taken away {times}; {again} were trained again"


def _earned_back(outlay: dict[str, Any] | None) -> str:
    if not outlay:
        return ""
    runs = outlay["runs"]
    after = "never: nothing was saved" if runs is None else f"after {runs:,.2f} times this"
    return f"{money(outlay['usd'])} are earned back {after}"


def _no_headline(data: dict[str, Any]) -> str:
    return "not known: no GPUs, or hours of which no steps are on record" if data["hours"] else ""


def _state(data: dict[str, Any]) -> str:
    if not data["provisional"]:
        return "reconciled"
    confirmed = data["invoiced_usd"]
    part = f"; {money(confirmed)} of it reconciled" if confirmed else ""
    return f"provisional: by prices and times, not by a bill{part}"


def _saved(data: dict[str, Any]) -> str:
    if data["saving"] is None:
        return ""
    return f"{percent(data['saving'])}, against the {data['saving_basis']} on demand"


def _item_row(item: dict[str, Any]) -> list[str]:
    marks = "hedge loser" if item["hedge_lost"] else "" if item["estimated"] else "reconciled"
    unit = {"Hours": "h", "GB-Months": "GB-mo"}.get(item["unit"], item["unit"])
    quantity = f"{item['quantity']:,.3f} {unit}" if item["unit"] else "-"
    rate = "-" if item["rate_usd"] is None else money(item["rate_usd"])
    return [item["phase"], item["what"], quantity, rate, _cents(item["cost_usd"]), marks]


def _cents(usd: float) -> str:
    """With cents, so that a column can be added up."""
    return f"-${-usd:,.2f}" if usd < 0 else f"${usd:,.2f}"


def _job_row(one: dict[str, Any]) -> list[str]:
    names = ("compute", "storage", "egress", "control", "total")
    return [
        one["job"],
        *(_cents(one[f"{name}_usd"]) for name in names),
        money(one["usd_per_useful_gpu_hour"]),
        percent(one["saving"]),
        percent(one["discount"]),
    ]


def _sum_rows(data: dict[str, Any], by: str) -> list[list[str]]:
    """Nothing where there is one alone: that is the total."""
    rows = data.get(f"{by}s", ())
    return [[one[by] or "-", _cents(one["total_usd"])] for one in rows] if len(rows) > 1 else []


def _use_row(one: dict[str, Any], data: dict[str, Any]) -> list[str]:
    whole = data["billed_node_hours"]
    share = one["node_hours"] / whole if whole else None
    times = [f"{one[name]:,.3f}" for name in ("node_hours", "gpu_hours")]
    return [one["use"], *times, _cents(one["cost_usd"]), percent(share)]


def _instead_row(one: dict[str, Any]) -> list[str]:
    told = [f"{one['node_hours']:,.3f}", money(one["total_usd"])]
    return [one["name"], one["basis"], *told, percent(one["saving"]), percent(one["discount"])]


def _saving_rows(savings: dict[str, Any] | None) -> list[list[str]]:
    """Cause by cause; they add up."""
    if not savings:
        return []
    rows = [
        [one["name"], "-" if one["usd"] is None else _cents(one["usd"]), one["against"]]
        for one in savings["parts"]
    ]
    return [*rows, ["all", _cents(savings["total_usd"]), percent(savings["fraction"])]]


def claim_lines(data: dict[str, Any]) -> list[str]:
    """What somebody said of it, and what of that has no line item."""
    claim = data.get("claim")
    if not claim:
        return []
    total, none = claim["total_usd"], "has no line item"
    rest = money(claim["without_line_item_usd"])
    share = f"{claim['without_line_item'] * 100:.0f} %"
    lines = [f"claimed in all: {money(total)}, of which {rest} ({share}) {none}"]
    if claim["baseline_usd"]:
        rest = money(claim["baseline_without_line_item_usd"])
        share = f"{claim['baseline_without_line_item'] * 100:.0f} %"
        said = money(claim["baseline_usd"])
        lines.append(f"claimed instead: {said}, of which {rest} ({share}) {none}")
    if claim["saving"]:
        shown = percent(claim["saving_by_line_items"])
        lines.append(
            f"claimed saving: {percent(claim['saving'])}; by line items {shown}, the rest {none}"
        )
    return lines
