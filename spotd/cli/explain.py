"""`spotctl why` and `spotctl plan`: explanations that change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import JOB, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import clean, money, percent, place, seconds_since, span
from spotd.cli.diagnosis import print_diagnosis, print_utilization
from spotd.cli.drill import drill_text
from spotd.cli.fit_table import offer_notes, size_cells, size_columns
from spotd.cli.job_file import env_option, env_values, read_job_file
from spotd.cli.jobs import print_last_lines
from spotd.cli.placement import (
    print_excluded,
    print_moves,
    print_placement,
    print_prefetch,
)
from spotd.cli.render import (
    Cell,
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_table,
    print_text,
)
from spotd.cli.spot_value import print_spot_value

_SAVES_COLUMN = Column("SAVES $/H", right=True)
_OFFER_COLUMNS = (
    Column("WHERE", wrap=True, rank=0),
    Column("MACHINE", wrap=True),
    Column("AS"),
    Column("$/H", right=True, rank=0),
    Column("OFF", right=True, rank=2),
    Column("", wrap=True, rank=0),
)


def why(
    ctx: typer.Context,
    job: str = JOB,
    stacks: bool = typer.Option(
        False, "--stacks", help="Print every frame of a program that hung."
    ),
    output: Output = output_option(),
) -> None:
    """Explain a job's state and its next step: the decision that spotd would take now.

    Problems found in its training within a day are listed: what was observed, how spotd reacts,
    what you can try, and the stacks of a program that hung (--stacks prints all frames). So is the
    utilization of its machines in the last 15 minutes.

    \b
    Example:
      spotctl why gpt
      spotctl why gpt --stacks
    """
    with connect(ctx) as client:
        data = client.call(routes.EXPLAIN_JOB(job=job))
    emit(data, output, lambda: _print_why(data, stacks=stacks), "job")


def _print_why(data: dict[str, Any], *, stacks: bool) -> None:
    print_text(data["reason"])
    for reason in data["reasons"]:
        if reason != data["reason"]:
            print_text(f"because {reason}", indent=2)
    for text in data["next"]:
        print_text(f"next: {text}", indent=2)
    for number, line in enumerate(data.get("console", [])):
        print(("    " if number else "  ") + clean(line))
    if data["wake_at"]:
        remaining_s = -(seconds_since(data["wake_at"]) or 0.0)
        print_text(f"next decision in {span(remaining_s)}, or when something happens", indent=2)
    print_placement(data.get("placement", {}))
    print_prefetch(data.get("ahead", []))
    for diagnosis in data.get("verdicts", []):
        print_diagnosis(diagnosis, all_frames=stacks)
    if failure := data.get("failure"):
        print_last_lines(failure)
    print_utilization(data.get("use"))
    if data.get("drill"):
        print_text(f"last drill: {drill_text(data['drill'])}", indent=2)


def plan(
    ctx: typer.Context,
    file: Path = typer.Argument(metavar="FILE", help="A job file, or - for stdin."),
    env: list[str] = env_option(),
    limit: int = typer.Option(10, min=1, metavar="N", help="Show at most N offers."),
    output: Output = output_option(),
) -> None:
    """Rank the offers for a job file. Starts nothing and costs nothing.

    If the job says how much work there is (spotd.work), each place is shown with the expected cost
    to finish there, term by term, and with the time at which its deadline needs on-demand machines.

    Exit codes: 0 an offer fits, 2 none fits or no cloud answers, 4 a limit of the deployment
    forbids it, or no machine is in a permitted place.

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
        data = client.call(routes.PLAN(), body)
    for warning in data["warnings"]:
        print_message(f"warning: {warning}")
    emit(data, output, lambda: _print_plan(data), "job")
    _check_plan(data)


def _check_plan(data: dict[str, Any]) -> None:
    if not data["fitting"]:
        raise UserError(
            *_explain_no_fit(data),
            ExitCode.REFUSED if _all_excluded_by_location(data) else ExitCode.USAGE,
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
        message = data["blocked"] or (
            f"{limits['nodes']} nodes for {money(limits['usd_per_hour'])}/h are in use "
            f"of at most {limits['max_nodes'] or 'any number'} for {money(cap)}/h"
        )
        raise UserError(
            f"it would have to wait: {message}", "raise [limits] in config.toml", ExitCode.REFUSED
        )


def _all_excluded_by_location(data: dict[str, Any]) -> bool:
    """Return whether residency or operator rules exclude every offer that fits."""
    excluded = sum(row["count"] for row in data.get("left_out", []))
    return bool(excluded) and excluded >= data["fits"]


def _explain_no_fit(data: dict[str, Any]) -> tuple[str, str]:
    """Return why no offer fits, and the fix to suggest."""
    if _all_excluded_by_location(data):
        out = data["left_out"]
        return (
            f"no offer that fits {data['job']} is where it may run: {out[0]['why']}",
            "allow other regions or places (spotd.residency, not_operated_from)",
        )
    cap, cheapest = data["max_hourly_cost_usd"], data["cheapest"]
    if cap and cheapest and cheapest["price_usd_per_h"] > cap:
        price = money(cheapest["price_usd_per_h"])
        text = f"every offer that fits {data['job']} costs more than its max_hourly_cost of "
        return (
            text + f"{money(cap)}: the cheapest is {price}/h in {place(cheapest)}",
            f"resources.max_hourly_cost of {price} or more, or other resources",
        )
    return (
        f"no current offer fits {data['job']} ({data['known']} offers are known)",
        "wider resources (any_of, no zone, both spot and on-demand), or spotctl doctor",
    )


def _print_plan(data: dict[str, Any]) -> None:
    print_spot_value(data.get("worth"))
    saves = [_save_usd_per_h(row["checkpoint_usd_per_h"]) for row in data["offers"]]
    gb = data["checkpoint_gb"]
    if data["offers"]:
        columns, rows = list(_OFFER_COLUMNS), [_offer_row(row) for row in data["offers"]]
        if any(saves) or (gb and None in saves):  # else nothing, wherever it runs
            columns.insert(-1, _SAVES_COLUMN)
            for cells, usd_per_h in zip(rows, saves, strict=True):
                cells.insert(-1, "-" if usd_per_h is None else money(usd_per_h))
            print_message(_saves_legend(gb))
        if "model" in data:
            columns += size_columns(data["offers"])
            for cells, offer in zip(rows, data["offers"], strict=True):
                cells.extend(size_cells(offer["size"], data["offers"]))
        print_table(columns, rows)
        if "model" in data:
            offer_notes(data)
    print_placement(data.get("placement", {}))
    print_moves(data.get("moves", []))
    print_prefetch(data.get("ahead", []))
    print_excluded(data.get("left_out", []))
    if storage := data.get("storage"):
        print_message(_storage_line(storage, gb))
    if data["num_nodes"] > 1:
        min_nodes = data["min_nodes"]
        elastic = f", and continues with {min_nodes} or more if it loses some" if min_nodes else ""
        print_message(f"prices are per machine; the job needs {data['num_nodes']}{elastic}")


def _saves_legend(gb: float) -> str:
    legend = f"SAVES $/H: cost of saves of {gb:.3g} GB each, for egress"
    return f"{legend} and for requests to the store; -: not known"


def _save_usd_per_h(costs: dict[str, float | None]) -> float | None:
    """Return what saving checkpoints costs per hour, egress and requests together.

    A store without known request prices is a folder or a private server, so its requests cost
    nothing.
    """
    return None if costs["egress"] is None else costs["egress"] + (costs["requests"] or 0.0)


def _storage_line(storage: dict[str, Any], gb: float) -> str:
    return (
        f"storage: {storage['keep']} checkpoints of {gb:.3g} GB in {storage['store']} cost "
        f"{money(storage['usd_per_month'])} a month, {money(storage['usd_per_h'])}/h (list price "
        f"of {storage['class']} in {storage['region']}, {storage['dated']}; without what soft "
        "delete or versions keep)"
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
