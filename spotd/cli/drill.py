"""`spotctl drill`: inject a fault into a running job and check that the job recovers."""

from __future__ import annotations

import secrets
import sys
import time
from enum import Enum
from typing import Any

import typer

from spotd.api_client.client import JOB, Client, complete_job, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import age, clean, money
from spotd.cli.durations import duration_s
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

app = group()

POLL_S = 0.5
_PATIENCE_S = 120.0  # how long to wait for a daemon that restarts
_STYLES = {"passed": "green", "failed": "red", "called_off": "yellow"}
_COLUMNS = (
    Column("JOB", rank=0),
    Column("KIND"),
    Column("STATE", rank=0),
    Column("AGE", right=True, rank=2),
    Column("BY", rank=3),
    Column("FINDING", wrap=True, rank=0),
)


class Kind(str, Enum):
    """The fault to inject; see spotd/domain/fault_drill.py."""

    SIGTERM = "sigterm"
    NOTICE = "notice"
    KILL = "kill"
    AGENT = "agent"
    MACHINE = "machine"


@app.callback()
def drill() -> None:
    """Inject a fault into a running job, and check that it recovers.

    \b
    Example:
      spotctl drill run gpt --kind sigterm
    """


@app.command("run")
def run(
    ctx: typer.Context,
    job: str = JOB,
    kind: Kind = typer.Option(Kind.SIGTERM, "--kind", help="The fault to inject."),
    within: str = typer.Option(
        "15m", "--within", metavar="DURATION", help="Time limit for the recovery."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask for confirmation."),
    output: Output = output_option(),
) -> None:
    """Inject a fault into a running job, and report whether it recovered.

    sigterm: its program gets SIGTERM. notice: its agent gets a preemption notice. kill: kill -9 of
    the program. agent: kill -9 of the agent. machine: the machine is ended without warning. The
    maximum cost is shown first; a drill that would do harm is refused. It passes if no more steps
    were lost than the checkpoints allow, the loss curve continues, the first step came in time, and
    the old machine is gone. The drill continues without this command: spotctl drill ls.

    Exit codes: 0 passed, 1 failed, 4 refused or cancelled.

    \b
    Example:
      spotctl drill run gpt --kind sigterm
      spotctl drill run gpt --kind kill --within 10m --yes
    """
    within_s = duration_s(within, "--within", "15m, or 90s")
    with connect(ctx) as client:
        terms = client.call(
            routes.DRILL_TERMS(job=job), query={"kind": kind.value, "within_s": within_s}
        )
        _confirm(terms, yes=yes)
        body = {"kind": kind.value, "within_s": within_s, "id": secrets.token_hex(16)}
        run = routes.RUN_DRILL(job=job)
        data = client.with_retry(lambda: client.call(run, body), _PATIENCE_S)
        data = _follow(client, data)
    emit(data, output, lambda: print(f"{clean(data['job'])}: {clean(data['text'])}"), "id")
    if data["state"] == "failed":
        raise typer.Exit(ExitCode.FAILURE)
    if data["state"] == "called_off":
        raise typer.Exit(ExitCode.REFUSED)


def _confirm(terms: dict[str, Any], *, yes: bool) -> None:
    """Print what the drill does, and ask for confirmation. Raises UserError."""
    job = clean(terms["job"])
    print_message(
        f"{job} is at step {terms['step']}: {terms['what']}. It must train again within "
        f"{terms['within_s']:.0f} s, in which its machines cost at most {money(terms['most_usd'])}"
        if terms["most_usd"]
        else f"{job} is at step {terms['step']}: {terms['what']}. This needs no additional machine"
    )
    if yes:
        return
    if not sys.stdin.isatty():
        message = "the drill was not confirmed, and stdin is not a terminal"
        raise UserError(message, "run it again with --yes", ExitCode.USAGE)
    if not typer.confirm("Inject the fault?", default=False, err=True):
        raise UserError("nothing was done", "run it again and answer y", ExitCode.USAGE)


def _follow(client: Client, data: dict[str, Any]) -> dict[str, Any]:
    """Wait until the drill has ended and return it; the daemon may restart meanwhile."""
    shown_state, job, drill_id = "", data["job"], data["id"]
    job_id = data["job_id"]  # another job may have the name by now
    while True:
        if data["state"] != shown_state:
            shown_state = data["state"]
            if shown_state == "asked":
                print_message(f"requested: {drill_id}")
            if shown_state == "struck":
                print_message("fault injected: waiting for the job to train again")
        if data["ended_at"]:
            return {**data, "job": job, "kind": "Drill"}
        time.sleep(POLL_S)
        page = client.with_retry(
            lambda: client.call(routes.LIST_DRILLS(), query={"job": job_id}), _PATIENCE_S
        )
        data = next(row for row in page["items"] if row["id"] == drill_id)


@app.command("ls")
def list_drills(
    ctx: typer.Context,
    job: str = typer.Option(
        "", "--job", metavar="JOB", help="Only of this job.", autocompletion=complete_job
    ),
    output: Output = output_option(),
) -> None:
    """List drills and their outcomes, newest first.

    \b
    Example:
      spotctl drill ls
      spotctl drill ls --job gpt -o json
    """
    with connect(ctx) as client:
        data = client.call(routes.LIST_DRILLS(), query={"job": job})
    emit(data, output, lambda: _print(data), "id")


def _print(data: dict[str, Any]) -> None:
    if not data["items"]:
        print_message("no drills: spotctl drill run JOB --kind sigterm")
        return
    print_table(_COLUMNS, [_row(row) for row in data["items"]])


def _row(row: dict[str, Any]) -> list[Cell | str]:
    state = Cell(row["state"].replace("_", " "), _STYLES.get(row["state"], ""))
    finding = "; ".join(filter(None, (row["failed"], row["figures"])))
    asked = f"{age(row['asked_at'])} ago"
    return [row["job"], row["drill"], state, asked, row["actor"], finding]


def drill_text(row: dict[str, Any]) -> str:
    """Return a drill as one line of text, with its date."""
    at = instant(row["ended_at"] or row["asked_at"], "minutes")
    text = row["text"] or f"is under way ({row['state']})"
    return f"{at} {row['drill']}: {clean(text)}"
