"""`spotctl cancel`, `pause` and `resume`."""

from __future__ import annotations

import typer

from spotd.cli.client import complete_job, connect, job_path
from spotd.cli.render import Output, emit, output_option, say
from spotd.errors import UserError

_JOBS = typer.Argument(metavar="JOB...", help="Names or ids.", autocompletion=complete_job)


def cancel(ctx: typer.Context, jobs: list[str] = _JOBS, output: Output = output_option()) -> None:
    """Save, give the machines back and end the job. Its checkpoints stay.

    \b
    Example:
      spotctl cancel gpt
    """
    _ask(ctx, "cancel", jobs, output)


def pause(ctx: typer.Context, jobs: list[str] = _JOBS, output: Output = output_option()) -> None:
    """Save and give the machines back; the job costs nothing until it is resumed.

    \b
    Example:
      spotctl pause gpt
    """
    _ask(ctx, "pause", jobs, output)


def resume(ctx: typer.Context, jobs: list[str] = _JOBS, output: Output = output_option()) -> None:
    """Run a paused job again, from its last checkpoint.

    \b
    Example:
      spotctl resume gpt
    """
    _ask(ctx, "resume", jobs, output)


def _ask(ctx: typer.Context, verb: str, jobs: list[str], output: Output) -> None:
    """Ask for every job, whatever becomes of the others; the first error ends the command."""
    items, failed = [], []
    with connect(ctx) as client:
        for name in dict.fromkeys(jobs):
            try:
                job = client.post(job_path(name, f"/{verb}"))
            except UserError as error:
                failed.append(error)
                continue
            items.append(job)
            if output is Output.TABLE:
                say(f"{job['name']}: {job['phase']}")
    emit(
        {"apiVersion": "spotd/v1", "kind": "JobList", "items": items}, output, lambda: None, "name"
    )
    for text in [*dict.fromkeys(error.text for error in failed)][1:]:
        say(f"error: {text}")
    if failed:
        raise failed[0]
