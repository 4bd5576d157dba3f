"""`spotctl wait`: wait until a job ends, runs or is paused."""

from __future__ import annotations

from enum import Enum

import typer

from spotd.api_client.client import JOB, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.cli.durations import duration_s
from spotd.cli.follow import event_printer, exit_code_for, follow_job
from spotd.cli.render import Output, emit, output_option, print_message


class Goal(str, Enum):
    DONE = "done"
    RUNNING = "running"
    PAUSED = "paused"


def wait(
    ctx: typer.Context,
    job: str = JOB,
    goal: Goal = typer.Option(Goal.DONE, "--for", help="What to wait for."),
    timeout: str = typer.Option("", metavar="DURATION", help="Time limit, like 90s or 2h."),
    output: Output = output_option(),
) -> None:
    """Wait until a job ends (or runs, or is paused).

    Exit codes: 0 succeeded (or the goal), 100 failed, 103 cancelled, 7 time-out.

    \b
    Example:
      spotctl wait gpt --timeout 2h
      spotctl wait gpt --for running
    """
    limit_s = duration_s(timeout, "--timeout") if timeout else 0.0
    until = frozenset[str]() if goal is Goal.DONE else frozenset({goal.value})
    with connect(ctx) as client:
        job_id = client.call(routes.SHOW_JOB(job=job))["id"]
        cursor = client.call(routes.READ_EVENTS(), query={"job": job_id, "last": 1})["cursor"]
        result = follow_job(
            client=client,
            job_id=job_id,
            until=until,
            on_event=event_printer(),
            timeout_s=limit_s,
            after=cursor,
        )
    if result is None:
        raise UserError(
            f"job {job} is not {goal.value} after {timeout}",
            f"spotctl why {job}, or a longer --timeout",
            ExitCode.TIMEOUT,
        )
    emit(result, output, lambda: print_message(f"{result['name']}: {result['phase']}"), "name")
    raise typer.Exit(exit_code_for(result["phase"]))
