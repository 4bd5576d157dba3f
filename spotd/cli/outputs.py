"""`spotctl outputs`: the files that a job left."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import JOB, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import age, size
from spotd.cli.confirm import YES
from spotd.cli.groups import GroupWithDefault, IntoCommand, group
from spotd.cli.render import (
    Column,
    Output,
    Progress,
    emit,
    output_option,
    print_message,
    print_table,
)

SHOWN = 30

app = group(cls=GroupWithDefault)


@app.callback()
def outputs() -> None:
    """List, download or delete the files that a job left.

    \b
    Example:
      spotctl outputs gpt
      spotctl outputs gpt --into gpt-files
      spotctl outputs rm gpt
    """


@app.command("ls", cls=IntoCommand)
def list_outputs(
    ctx: typer.Context,
    job: str = JOB,
    into: Path | None = typer.Option(
        None, "--into", metavar="DIR", help="Download them into this folder; created if missing."
    ),
    output: Output = output_option(),
) -> None:
    """List or download the files that a job left, verifying every byte.

    Files are uploaded when the program ends, and at a pause or a cancel, before the machine is
    terminated: those that spotd: {outputs: [...]} in the job file names; without it, everything
    that changed below the workdir, up to 10 GB. In directory mode the newest save of the program's
    folder is included. If several machines uploaded a file, the newest version counts. To continue
    an interrupted download, run the command again.

    \b
    Example:
      spotctl outputs gpt
      spotctl outputs ls gpt
      spotctl outputs gpt --into gpt-files
    """
    progress = Progress("pulled")
    with connect(ctx) as client:
        listed = client.call(routes.LIST_OUTPUTS(job=job))
        if into is None:
            emit(listed, output, lambda: _print_files(listed), "path")
            return
        if not listed["items"]:
            problem = "; ".join(listed["problems"])
            raise UserError(f"job {job} has left no files: {problem}", f"spotctl why {job}")
        from spotd.cli.pull import pull_outputs_into

        data = pull_outputs_into(
            client=client, listed=listed, folder=into, on_progress=progress.show
        )
    progress.end()
    emit(data, output, lambda: _print_pulled(data, into), "into")


@app.command("rm")
def remove(
    ctx: typer.Context,
    job: str = JOB,
    yes: bool = YES,
    output: Output = output_option(),
) -> None:
    """Delete the files that a job left from its store. Its checkpoints stay: see spotctl ckpt rm.

    You confirm it, or give --yes. The job must have no machine.

    \b
    Example:
      spotctl outputs rm gpt
      spotctl outputs rm gpt --yes
    """
    with connect(ctx) as client:
        if not yes:
            _confirm(job, client.call(routes.LIST_OUTPUTS(job=job)))
        data = client.call(routes.REMOVE_OUTPUTS(job=job))
    message = f"{data['job']}: {data['objects']} objects ({size(data['bytes'])}) are removed"
    emit(data, output, lambda: print_message(message), "job")


def _confirm(job: str, listed: dict[str, Any]) -> None:
    """Ask before the removal. Raises UserError if it is declined, or if stdin is not a terminal."""
    what = f"{len(listed['items'])} files, {size(listed['bytes'])}, of {listed['job']}"
    fix = f"spotctl outputs rm {job} --yes"
    if not listed["items"]:
        return
    if not sys.stdin.isatty():
        message = f"removal of {what} was not confirmed, and stdin is not a terminal"
        raise UserError(message, fix, ExitCode.USAGE)
    if not typer.confirm(f"Remove {what}?", default=False, err=True):
        raise UserError("nothing was removed", fix, ExitCode.USAGE)


def _print_files(listed: dict[str, Any]) -> None:
    files = listed["items"]
    if files:
        columns = [
            Column("SIZE", right=True, rank=0),
            Column("AGE", right=True),
            Column("FILE", wrap=True, rank=0),
        ]
        rows = [
            [size(file["bytes"]), age(file["modified_at"]), file["path"]] for file in files[:SHOWN]
        ]
        print_table(columns, rows)
        more = f", {len(files) - SHOWN} more than shown" if len(files) > SHOWN else ""
        total = f"{len(files)} files{more}, {size(listed['bytes'])}"
        print_message(f"{total}: spotctl outputs {listed['job']} --into DIR")
    for problem in listed["problems"]:
        print_message(problem)


def _print_pulled(data: dict[str, Any], into: Path) -> None:
    names = ", ".join(data["entries"][:5]) + (", ..." if len(data["entries"]) > 5 else "")
    print_message(
        f"{data['files']} files ({names}), {size(data['bytes'])} in {into}, every byte as it was "
        "uploaded"
    )
    for problem in data["problems"]:
        print_message(problem)
