"""`spotctl cancel`, `pause` and `resume`."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import Client, complete_job, connect, job_path
from spotd.base.errors import ExitCode, UserError
from spotd.cli.confirm import YES, confirm_many
from spotd.cli.job_file import OVERRIDE
from spotd.cli.render import Output, emit, output_option, say

_JOBS = typer.Argument(metavar="JOB...", help="Names or ids.", autocompletion=complete_job)
_MAY_BE_ALL = typer.Argument(
    None, metavar="JOB...", help="Names or ids.", autocompletion=complete_job
)
_ALL = typer.Option(False, "--all", help="Every job that has not ended.")


def cancel(
    ctx: typer.Context,
    jobs: list[str] | None = _MAY_BE_ALL,
    all_: bool = _ALL,
    yes: bool = YES,
    output: Output = output_option(),
) -> None:
    """Save, give the machines back and end the job. Its checkpoints stay.

    Several jobs are ended once their number was typed in, or with --yes.

    \b
    Example:
      spotctl cancel gpt
      spotctl cancel --all --yes
    """
    with connect(ctx) as client:
        names = _names(client, jobs, everything=all_)
        confirm_many("cancel", "jobs", names, yes=yes)
        _ask(client, "cancel", names, output)


def pause(
    ctx: typer.Context,
    jobs: list[str] | None = _MAY_BE_ALL,
    all_: bool = _ALL,
    yes: bool = YES,
    output: Output = output_option(),
) -> None:
    """Save and give the machines back; the job costs nothing until it is resumed.

    Several jobs are paused once their number was typed in, or with --yes.

    \b
    Example:
      spotctl pause gpt
    """
    with connect(ctx) as client:
        names = _names(client, jobs, everything=all_)
        confirm_many("pause", "jobs", names, yes=yes)
        _ask(client, "pause", names, output)


def resume(
    ctx: typer.Context,
    jobs: list[str] = _JOBS,
    override: bool = OVERRIDE,
    output: Output = output_option(),
) -> None:
    """Run a paused job again, from its last checkpoint.

    \b
    Example:
      spotctl resume gpt
    """
    with connect(ctx) as client:
        _ask(client, "resume", list(dict.fromkeys(jobs)), output, {"override_budget": override})


def _names(client: Client, jobs: list[str] | None, *, everything: bool) -> list[str]:
    """Whom the order is for. Raises UserError when that is not said, or twice."""
    if bool(jobs) is everything:
        raise UserError("name jobs, or say --all", "spotctl ps lists them", ExitCode.USAGE)
    if everything:
        jobs = [job["name"] for job in client.get("/v1/jobs", limit=10_000)["items"]]
    return list(dict.fromkeys(jobs or ()))


def _ask(
    client: Client,
    verb: str,
    jobs: list[str],
    output: Output,
    body: dict[str, Any] | None = None,
) -> None:
    """Ask for every job, whatever becomes of the others; the first error ends the command."""
    items, failed = [], []
    for name in jobs:
        try:
            job = client.post(job_path(name, f"/{verb}"), body)
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
