"""`spotctl ps`, `show` and `nodes`: jobs and their machines."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import JOB, complete_job, connect
from spotd.api_client.wording import eta_text, failure_title, progress_pairs, result_text
from spotd.api_routes import routes
from spotd.base.text import age, clean, money, percent, place, places, size, span, spent
from spotd.cli.drill import drill_text
from spotd.cli.local_time import clock, instant
from spotd.cli.render import (
    PHASE_STYLES,
    Cell,
    Column,
    Output,
    emit,
    output_option,
    phase_cell,
    print_message,
    print_pairs,
    print_table,
    print_text,
)

_JOB_COLUMNS = (
    Column("NAME", rank=0),
    Column("PHASE", wrap=True, rank=0),
    Column("STEP", right=True, rank=1),
    Column("WHERE", wrap=True, rank=0),
    Column("GEN", right=True, rank=5),
    Column("REC", right=True, rank=4),
    Column("AGE", right=True, rank=3),
    Column("COST", right=True, rank=0),
    Column("SAVED", right=True, rank=2),
    Column("DONE", right=True, rank=2),
    Column("ETA", right=True, rank=2),
)
_NODE_COLUMNS = (
    Column("GEN", right=True, rank=1),
    Column("WHERE", wrap=True, rank=0),
    Column("TYPE", wrap=True, rank=2),
    Column("STATE", rank=0),
    Column("STEP", right=True, rank=4),
    Column("$/H", right=True, rank=0),
    Column("AGE", right=True, rank=3),
    Column("LEFT", wrap=True, rank=2),
)

_EVICTION_COLUMNS = (
    *(Column(title, rank=0) for title in ("NOTICE FOR", "RECEIVED")),
    *(Column(title, rank=0) for title in ("STOP SENT", "RELEASED", "ENDED", "GONE")),
)
_UNKNOWN = Cell("unknown", "dim")


def ps(
    ctx: typer.Context,
    everything: bool = typer.Option(False, "-a", "--all", help="Include finished jobs."),
    limit: int = typer.Option(100, min=1, metavar="N", help="Show at most N jobs, the newest."),
    output: Output = output_option(),
) -> None:
    """List jobs.

    GEN is the generation (the newest attempt), REC the number of recoveries after a machine was
    preempted or lost, SAVED the age of the newest checkpoint, DONE the share of all steps, ETA the
    remaining time at the rate of the last 24 h, which includes lost steps and waits.

    \b
    Example:
      spotctl ps
      spotctl ps --all -o json
    """
    with connect(ctx) as client:
        data = client.call(
            routes.LIST_JOBS(), query={"all": 1 if everything else "", "limit": limit}
        )
    emit(data, output, lambda: _print_jobs(data, everything), "name")


def _print_jobs(data: dict[str, Any], everything: bool) -> None:
    if not data["items"]:
        more = "" if everything else " (spotctl ps --all shows finished ones)"
        print_message(f"no jobs{more}")
        return
    print_table(_JOB_COLUMNS, [_job_row(job) for job in data["items"]])
    if data["total"] > len(data["items"]):
        print_message(
            f"{data['total'] - len(data['items'])} more: spotctl ps --limit {data['total']}"
        )


def _job_row(job: dict[str, Any]) -> list[Cell | str]:
    saved = job["last_checkpoint"]
    return [
        job["name"],
        phase_cell(job),
        str(job["step"]),
        places(job["where"]),
        str(job["generation"]),
        str(job["recoveries"]),
        age(job["created_at"]),
        money(job["cost_usd"]),
        age(saved["at"]) if saved else "-",
        percent(job["progress"]["share"]),
        eta_text(job["progress"]),
    ]


def show(
    ctx: typer.Context,
    job: str = JOB,
    file: bool = typer.Option(False, "--file", help="Print the job file, as submitted."),
    output: Output = output_option(),
) -> None:
    """Show one job with its machines.

    \b
    Example:
      spotctl show gpt
      spotctl show gpt --file
    """
    with connect(ctx) as client:
        data = client.call(routes.JOB_FILE(job=job) if file else routes.SHOW_JOB(job=job))
    if file and output.is_table:
        typer.echo(data["yaml"].rstrip("\n"))
        return
    emit(data, output, lambda: _print_job(data), "job" if file else "name")


def _approval_text(job: dict[str, Any]) -> str:
    """Return what another person is to approve before the job runs; "" for nothing."""
    approval = job.get("approval")
    if not approval:
        return ""
    return (
        f"an admin other than {approval['asked_by']} has to approve that it exceeds a budget "
        f"(spotctl budget approve {job['name']}): {approval['text']}"
    )


def _print_job(job: dict[str, Any]) -> None:
    saved, checkpoint = job["last_checkpoint"], job["checkpoint"]
    print_pairs(
        [
            ("job", f"{job['name']} ({job['id']})"),
            ("phase", phase_cell(job)),
            ("why", job["outcome_text"] or _approval_text(job)),
            ("failure", _failure(job["failure"])),
            ("step", str(job["step"])),
            *progress_pairs(job["progress"]),
            ("where", places(job["where"])),
            (
                "generation",
                f"{job['generation']} ({_recoveries(job)})",
            ),
            ("lost", _lost(job)),
            ("machines", _machines(job)),
            ("submitted", f"{age(job['created_at'])} ago"),
            ("first step", _ago(job["first_step_at"])),
            ("finished", _ago(job["finished_at"])),
            ("cost", spent(job["cost_usd"], job["max_cost_usd"])),
            ("crashes", _crashes(job["failures"], job["max_restarts_on_errors"])),
            ("saved", _saved(saved, checkpoint["engine"])),
            ("saves", _saves(checkpoint)),
            ("deadline", job["deadline"] or ""),
        ]
    )
    for diagnosis in job["verdicts"]:
        print_text(f"problem     {diagnosis['seen']}; see spotctl why {job['name']}")
    for result in job["results"]:
        print_text(f"results     {result['suite']}: {result_text(result)}")
    if job.get("drill"):
        print_text(f"drill       {drill_text(job['drill'])}")
    if job["nodes"]:
        print()
        _print_machines((), [([], node) for node in job["nodes"]])
    print_evictions(job["evictions"])
    if job["failure"]:
        print_last_lines(job["failure"])


def _failure(failure: dict[str, Any] | None) -> str:
    """Return what failed last, with its cause; "" if nothing did."""
    if failure is None:
        return ""
    over = ", and the job continued" if failure["over"] else ""
    ago = f" ({age(failure['at'])} ago{over})" if failure["at"] else ""
    return f"{failure['summary']}{ago}"


def _recoveries(job: dict[str, Any]) -> str:
    resumed = _count(job["recoveries"], "recovery", "recoveries")
    anew = job["restarts_anew"]
    return f"{resumed}, {anew} more from the beginning" if anew else resumed


def _lost(job: dict[str, Any]) -> str:
    """Return the work that was done again after hand-overs; "" without any."""
    if not job["hand_overs"]:
        return ""
    if not job["steps_lost"] and job["lost_s"] == 0:
        return "no work"
    steps = "" if job["steps_lost"] is None else f"{_count(job['steps_lost'], 'step', 'steps')}, "
    if job["lost_s"] is None:
        return f"{steps}the time is not known"
    return f"{steps}{span(job['lost_s'])} of work ({money(job['lost_usd'])})"


def _machines(job: dict[str, Any]) -> str:
    """Return how many machines of a gang train, and what the gang does when it loses one."""
    if job["num_nodes"] == 1:
        return ""
    policy = "" if job["on_node_loss"] == "wait" else f" (on_node_loss: {job['on_node_loss']})"
    return f"{job['training_nodes']} of {job['num_nodes']} train{policy}"


def print_evictions(evictions: list[dict[str, Any]]) -> None:
    """Print the table; nothing if there was no notice. A time without a record is unknown."""
    if not evictions:
        return
    print()
    rows = []
    for eviction in evictions:
        machine = str(eviction["generation"]) + (f".{eviction['rank']}" if eviction["rank"] else "")
        times = [eviction[name] for name in ("asked", "released", "ended", "gone")]
        rows.append(
            [
                machine,
                instant(eviction["notice"]) if eviction["notice"] else _UNKNOWN,
                *(_UNKNOWN if at is None else clock(at, eviction["notice"]) for at in times),
            ]
        )
    print_table(_EVICTION_COLUMNS, rows)


def print_last_lines(failure: dict[str, Any]) -> None:
    """Print the last lines of what failed; nothing if it is over or printed nothing."""
    if failure["lines"] and not failure["over"]:
        print(f"\n{failure_title(failure)}:")
        for line in failure["lines"]:
            print(f"  {clean(line)}")


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _ago(at: str | None) -> str:
    return f"{age(at)} ago" if at else ""


def _crashes(failures: int, restarts: int) -> str:
    return f"{failures} ({_count(restarts, 'restart', 'restarts')} allowed)"


def _saves(checkpoint: dict[str, Any]) -> str:
    if checkpoint["directory"]:
        return f"its files in {checkpoint['directory']}, to {checkpoint['store']}"
    if checkpoint["engine"] == "none":
        return "only its own (engine none)"
    if checkpoint["auto"]:
        return f"at the optimal interval (auto) to {checkpoint['store']}"
    steps, seconds = checkpoint["every_steps"], checkpoint["every_s"]
    every = [f"{steps} steps"] if steps else []
    every += [span(seconds)] if seconds else []
    return f"every {' or '.join(every)} to {checkpoint['store']}"


def _saved(saved: dict[str, Any] | None, engine: str) -> str:
    if saved is None:
        return "" if engine == "none" else "nothing yet"
    return f"step {saved['step']}, {age(saved['at'])} ago, {size(saved['bytes'])}"


def _print_machines(
    leading: tuple[Column, ...], rows: list[tuple[list[Cell | str], dict[str, Any]]]
) -> None:
    """Print machines, with the margin left at a notice if any machine had one."""
    columns, reason_column = (*leading, *_NODE_COLUMNS[:-1]), _NODE_COLUMNS[-1]
    has_margins = any(node["margin_s"] is not None for _, node in rows)
    margin_column = (Column("MARGIN", right=True, rank=3),) if has_margins else ()
    table = []
    for cells, node in rows:
        *node_cells, reason = _node_row(node)
        table.append(
            [*cells, *node_cells, *([_margin(node["margin_s"])] if has_margins else []), reason]
        )
    print_table((*columns, *margin_column, reason_column), table)


def _margin(seconds: float | None) -> Cell | str:
    if seconds is None:
        return "-"
    return Cell(f"{seconds:.0f}s", "red" if seconds < 0 else "")


def _node_row(node: dict[str, Any]) -> list[Cell | str]:
    state = node["state"]
    return [
        str(node["generation"]) + (f".{node['rank']}" if node["rank"] else ""),
        place(node),
        f"{node['instance_type']} {node['capacity_type']}",
        Cell(state, PHASE_STYLES.get(state, "dim" if state == "gone" else "")),
        str(node["step"]),
        money(node["price_usd_per_h"]),
        age(node["moved_at"] or node["requested_at"]),
        node["leave_text"] or node["leave_reason"] or node["effect_error"] or "-",
    ]


def nodes(
    ctx: typer.Context,
    job: str = typer.Argument(
        "",
        metavar="JOB",
        help="List all machines that this job ever had.",
        autocompletion=complete_job,
    ),
    output: Output = output_option(),
) -> None:
    """List machines that cost money now, or all that one job ever had.

    \b
    Example:
      spotctl nodes
      spotctl nodes gpt -o json
    """
    with connect(ctx) as client:
        data = client.call(routes.LIST_NODES(), query={"job": job})
    emit(data, output, lambda: _print_nodes(data), "id")


def _print_nodes(data: dict[str, Any]) -> None:
    if not data["items"]:
        print_message("no machines")
        return
    rows = [([node["job"]], node) for node in data["items"]]
    _print_machines((Column("JOB", rank=0),), rows)
