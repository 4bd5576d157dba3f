"""`spotctl drill`."""

from __future__ import annotations

import secrets
import sys
import time
from enum import Enum
from typing import Any

import typer

from spotd.api_client.client import JOB, Client, complete_job, connect, job_path
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import age, clean, money
from spotd.cli.durations import duration_s
from spotd.cli.render import HELP, Cell, Column, Output, emit, output_option, print_table, say

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)

LOOK_S = 0.5
_PATIENCE_S = 120.0  # with a daemon that restarts
_STYLES = {"passed": "green", "failed": "red", "called_off": "yellow"}
_COLUMNS = (
    Column("JOB"),
    Column("KIND"),
    Column("STATE"),
    Column("ASKED", right=True),
    Column("BY"),
    Column("FINDING", cut=True),
)


class Kind(str, Enum):
    """What is done to the job; see spotd/domain/fault_drill.py."""

    SIGTERM = "sigterm"
    NOTICE = "notice"
    KILL = "kill"
    AGENT = "agent"
    MACHINE = "machine"


@app.callback()
def drill() -> None:
    """Strike a running job on purpose, and see that it comes back.

    \b
    Example:
      spotctl drill run gpt --kind sigterm
    """


@app.command("run")
def run(
    ctx: typer.Context,
    job: str = JOB,
    kind: Kind = typer.Option(Kind.SIGTERM, "--kind", help="What is done to it."),
    within: str = typer.Option(
        "15m", "--within", metavar="DURATION", help="It is to train again in that time."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    output: Output = output_option(),
) -> None:
    """Strike a running job on purpose, and say whether it came back as it should.

    sigterm: its program gets SIGTERM. notice: its agent hears of a preemption. kill: kill -9 of the
    program. agent: kill -9 of the agent. machine: the machine is ended without a word. What that
    may cost at most is said before; where it would do harm it is refused. It passes where no more
    steps were lost than its checkpoints allow, losses go on as they were, the first step came in
    time, and the old machine is gone. It goes on without this command: spotctl drill ls.

    Exit codes: 0 passed, 1 failed, 4 refused or called off.

    \b
    Example:
      spotctl drill run gpt --kind sigterm
      spotctl drill run gpt --kind kill --within 10m --yes
    """
    within_s = duration_s(within, "--within", "15m, or 90s")
    with connect(ctx) as client:
        terms = client.get(job_path(job, "/drills/terms"), kind=kind.value, within_s=within_s)
        _confirm(terms, yes=yes)
        body = {"kind": kind.value, "within_s": within_s, "id": secrets.token_hex(16)}
        path = job_path(job, "/drills")
        data = client.patiently(lambda: client.post(path, body), _PATIENCE_S)
        data = _follow(client, data)
    emit(data, output, lambda: print(f"{clean(data['job'])}: {clean(data['text'])}"), "id")
    if data["state"] == "failed":
        raise typer.Exit(ExitCode.FAILURE)
    if data["state"] == "called_off":
        raise typer.Exit(ExitCode.REFUSED)


def _confirm(terms: dict[str, Any], *, yes: bool) -> None:
    """Say what comes, and have it confirmed. Raises UserError."""
    job = clean(terms["job"])
    say(
        f"{job} is at step {terms['step']}: {terms['what']}. It is to train again within "
        f"{terms['within_s']:.0f} s, in which its machines cost at most {money(terms['most_usd'])}"
        if terms["most_usd"]
        else f"{job} is at step {terms['step']}: {terms['what']}. This costs no machine more"
    )
    if yes:
        return
    if not sys.stdin.isatty():
        text = "the drill was not confirmed, and nobody is here to be asked"
        raise UserError(text, "the same with --yes", ExitCode.USAGE)
    if not typer.confirm("Strike it?", default=False, err=True):
        raise UserError("nothing was done", "the same again, and y", ExitCode.USAGE)


def _follow(client: Client, data: dict[str, Any]) -> dict[str, Any]:
    """Until it has ended; the daemon may restart meanwhile."""
    told, job, number = "", data["job"], data["id"]
    job_id = data["job_id"]  # another job may have the name by now
    while True:
        if data["state"] != told:
            told = data["state"]
            if told in ("asked", "struck"):
                say(f"{told}: {'waiting for it to train again' if told == 'struck' else number}")
        if data["ended_at"]:
            return {**data, "job": job, "kind": "Drill"}
        time.sleep(LOOK_S)
        page = client.patiently(lambda: client.get("/v1/drills", job=job_id), _PATIENCE_S)
        data = next(row for row in page["items"] if row["id"] == number)


@app.command("ls")
def list_drills(
    ctx: typer.Context,
    job: str = typer.Option(
        "", "--job", metavar="JOB", help="Of this job alone.", autocompletion=complete_job
    ),
    output: Output = output_option(),
) -> None:
    """List drills, the newest first, and what became of each.

    \b
    Example:
      spotctl drill ls
      spotctl drill ls --job gpt -o json
    """
    with connect(ctx) as client:
        data = client.get("/v1/drills", job=job)
    emit(data, output, lambda: _print(data), "id")


def _print(data: dict[str, Any]) -> None:
    if not data["items"]:
        say("no drills: spotctl drill run JOB --kind sigterm")
        return
    print_table(_COLUMNS, [_row(one) for one in data["items"]])


def _row(one: dict[str, Any]) -> list[Cell | str]:
    state = Cell(one["state"].replace("_", " "), _STYLES.get(one["state"], ""))
    finding = "; ".join(filter(None, (one["failed"], one["figures"])))
    asked = f"{age(one['asked_at'])} ago"
    return [one["job"], one["drill"], state, asked, one["actor"], finding]


def drill_text(one: dict[str, Any]) -> str:
    """A drill in a line, with its date."""
    at = (one["ended_at"] or one["asked_at"])[:10]
    said = one["text"] or f"is under way ({one['state']})"
    return f"{at} {one['drill']}: {clean(said)}"
