"""`spotctl why` and `plan`: explanations that change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import JOB, connect, job_path
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean, money, percent, place, seconds_since, span
from spotd.cli.diagnosis import print_use, print_verdict
from spotd.cli.drill import drill_text
from spotd.cli.fit_table import offer_notes, size_cells, size_columns
from spotd.cli.job_file import env_option, env_values, read_job_file
from spotd.cli.placement import (
    print_ahead,
    print_left_out,
    print_moves,
    print_placement,
)
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table, say
from spotd.cli.spot_value import print_worth

_SAVES_COLUMN = Column("SAVES $/H", right=True)
_OFFER_COLUMNS = (
    Column("WHERE", cut=True, tail=8),
    Column("MACHINE", cut=True),
    Column("AS"),
    Column("$/H", right=True),
    Column("OFF", right=True),
    Column("", cut=True),
)


def why(
    ctx: typer.Context,
    job: str = JOB,
    stacks: bool = typer.Option(False, "--stacks", help="Every frame of a program that hung."),
    output: Output = output_option(),
) -> None:
    """Say why a job is where it is and what comes next: a decision taken now, and thrown away.

    What was found wrong with its training within a day comes with it: what was seen, what spotd
    does about it, what you can try, and the stacks of a program that hung (--stacks prints them
    whole). So does how well its machines were used in the last quarter of an hour.

    \b
    Example:
      spotctl why gpt
      spotctl why gpt --stacks
    """
    with connect(ctx) as client:
        data = client.get(job_path(job, "/why"))
    emit(data, output, lambda: _print_why(data, stacks=stacks), "job")


def _print_why(data: dict[str, Any], *, stacks: bool) -> None:
    print(clean(data["reason"]))
    for reason in data["reasons"]:
        if reason != data["reason"]:
            print(f"  because {clean(reason)}")
    for text in data["next"]:
        print(f"  next: {clean(text)}")
    for number, line in enumerate(data.get("console", [])):
        print(("    " if number else "  ") + clean(line))
    if data["wake_at"]:
        left = -(seconds_since(data["wake_at"]) or 0.0)
        print(f"  looked at again in {span(left)}, or when something happens")
    print_placement(data.get("placement", {}))
    print_ahead(data.get("ahead", []))
    for verdict in data.get("verdicts", []):
        print_verdict(verdict, whole=stacks)
    print_use(data.get("use"))
    if data.get("drill"):
        print(f"  last drill: {drill_text(data['drill'])}")


def plan(
    ctx: typer.Context,
    file: Path = typer.Argument(metavar="FILE", help="A job file, or - for stdin."),
    env: list[str] = env_option(),
    limit: int = typer.Option(10, min=1, metavar="N", help="At most so many offers."),
    output: Output = output_option(),
) -> None:
    """Rank where a job file would run now. Starts nothing and costs nothing.

    Of a job that says how much there is to do (spotd.work), each place is shown with what the job
    is expected to cost there until it is done, term by term, and when its deadline needs machines
    on demand.

    Exit codes: 0 something fits, 2 nothing does or its clouds do not answer, 4 a limit of the
    deployment is in the way, or no machine stands where the job may run.

    \b
    Example:
      spotctl plan examples/finetune.yaml
    """
    body = {
        "yaml": read_job_file(file),
        "env": env_values(env),
        "fallback_name": file.stem if str(file) != "-" else "stdin",
        "limit": limit,
    }
    with connect(ctx) as client:
        data = client.post("/v1/plan", body)
    for warning in data["warnings"]:
        say(f"warning: {warning}")
    emit(data, output, lambda: _print_plan(data), "job")
    _judge(data)


def _judge(data: dict[str, Any]) -> None:
    if not data["fitting"]:
        raise UserError(
            *_why_nothing(data), ExitCode.REFUSED if _misplaced(data) else ExitCode.USAGE
        )
    if not data["answering"]:
        raise UserError(
            f"no cloud with an offer that fits {data['job']} answers",
            "spotctl doctor",
            ExitCode.USAGE,
        )
    limits = data["limits"]
    over_nodes = limits["max_nodes"] and limits["nodes"] + data["num_nodes"] > limits["max_nodes"]
    best = next(row for row in data["offers"] if not row["excluded"])
    cap = limits["max_usd_per_hour"]
    over_money = cap and limits["usd_per_hour"] + best["total_usd_per_h"] > cap
    if data["blocked"] or over_nodes or over_money:
        text = data["blocked"] or (
            f"{limits['nodes']} nodes for {money(limits['usd_per_hour'])}/h are in use "
            f"of at most {limits['max_nodes'] or 'any number'} for {money(cap)}/h"
        )
        raise UserError(
            f"it would have to wait: {text}", "raise [limits] in config.toml", ExitCode.REFUSED
        )


def _misplaced(data: dict[str, Any]) -> bool:
    """All that fits is out because of where it stands, or who runs it."""
    out = sum(row["count"] for row in data.get("left_out", []))
    return bool(out) and out >= data["fits"]


def _why_nothing(data: dict[str, Any]) -> tuple[str, str]:
    """What is in the way of every offer, and what to try."""
    if _misplaced(data):
        out = data["left_out"]
        return (
            f"nothing that fits {data['job']} stands where it may run: {out[0]['why']}",
            "regions that are there, or more places (spotd.residency, not_operated_from)",
        )
    cap, cheapest = data["max_hourly_cost_usd"], data["cheapest"]
    if cap and cheapest and cheapest["price_usd_per_h"] > cap:
        price = money(cheapest["price_usd_per_h"])
        text = f"everything that fits {data['job']} costs more than its max_hourly_cost of "
        return (
            text + f"{money(cap)}: the cheapest is {price}/h in {place(cheapest)}",
            f"resources.max_hourly_cost of {price} or more, or other resources",
        )
    return (
        f"nothing that can be had now fits {data['job']} ({data['known']} offers are known)",
        "wider resources (any_of, no zone, both spot and on-demand), or spotctl doctor",
    )


def _print_plan(data: dict[str, Any]) -> None:
    print_worth(data.get("worth"))
    saves = [_saves(row["checkpoint_usd_per_h"]) for row in data["offers"]]
    gb = data["checkpoint_gb"]
    if data["offers"]:
        columns, rows = list(_OFFER_COLUMNS), [_offer_row(row) for row in data["offers"]]
        if any(saves) or (gb and None in saves):  # else nothing, wherever it runs
            columns.insert(-1, _SAVES_COLUMN)
            for cells, each in zip(rows, saves, strict=True):
                cells.insert(-1, "-" if each is None else money(each))
            say(_about_saves(gb))
        if "model" in data:
            columns += size_columns(data["offers"])
            for line, offer in zip(rows, data["offers"], strict=True):
                line.extend(size_cells(offer["size"], data["offers"]))
        print_table(columns, rows)
        if "model" in data:
            offer_notes(data)
    print_placement(data.get("placement", {}))
    print_moves(data.get("moves", []))
    print_ahead(data.get("ahead", []))
    print_left_out(data.get("left_out", []))
    if kept := data.get("storage"):
        say(_about_storage(kept, gb))
    if data["num_nodes"] > 1:
        few = data["min_nodes"]
        rest = f", and goes on with {few} or more when it loses some" if few else ""
        say(f"prices are of one machine; the job takes {data['num_nodes']}{rest}")


def _about_saves(gb: float) -> str:
    text = f"SAVES $/H: what saves of {gb:.3g} GB each cost for bytes that leave the cloud"
    return f"{text} and for requests to the store; -: not known"


def _saves(costs: dict[str, float | None]) -> float | None:
    """Of an hour, in all. A store whose requests nobody's prices are known of is a folder, or one's
    own server."""
    return None if costs["egress"] is None else costs["egress"] + (costs["requests"] or 0.0)


def _about_storage(kept: dict[str, Any], gb: float) -> str:
    return (
        f"storage: {kept['keep']} checkpoints of {gb:.3g} GB in {kept['store']} cost "
        f"{money(kept['usd_per_month'])} a month, {money(kept['usd_per_h'])}/h (list price of "
        f"{kept['class']} in {kept['region']}, {kept['dated']}; without what soft delete or "
        "versions keep)"
    )


def _offer_row(row: dict[str, Any]) -> list[Cell | str]:
    count = f" {row['accelerator_count']}x{row['accelerator']}" if row["accelerator"] else ""
    off = 1 - row["price_usd_per_h"] / row["list_usd_per_h"] if row["list_usd_per_h"] else None
    return [
        place(row),
        f"{row['instance_type']}{count}",
        row["capacity_type"],
        money(row["price_usd_per_h"]),
        percent(off),
        row["excluded"] or row["silent"] or ("baked image" if row.get("baked") else ""),
    ]
