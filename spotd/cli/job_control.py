"""`spotctl cancel`, `pause` and `resume`."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import Client, complete_job, connect
from spotd.api_routes import routes
from spotd.api_routes.operation import Endpoint
from spotd.base.errors import ExitCode, UserError
from spotd.cli.confirm import YES, confirm_many
from spotd.cli.job_file import OVERRIDE
from spotd.cli.render import Output, emit, output_option, print_message

_JOBS = typer.Argument(metavar="JOB...", help="Names or ids.", autocompletion=complete_job)
_OPTIONAL_JOBS = typer.Argument(
    None, metavar="JOB...", help="Names or ids.", autocompletion=complete_job
)
_ALL = typer.Option(False, "--all", help="All unfinished jobs.")


def cancel(
    ctx: typer.Context,
    jobs: list[str] | None = _OPTIONAL_JOBS,
    all_: bool = _ALL,
    yes: bool = YES,
    no_outputs: bool = typer.Option(
        False, "--no-outputs", help="Do not store the files that the program leaves."
    ),
    output: Output = output_option(),
) -> None:
    """Save, release the machines and end the job. Its checkpoints stay.

    For several jobs you confirm by typing their number, or with --yes.

    \b
    Example:
      spotctl cancel gpt
      spotctl cancel gpt --no-outputs
      spotctl cancel --all --yes
    """
    with connect(ctx) as client:
        names = _job_names(client, jobs, everything=all_)
        confirm_many("cancel", "jobs", names, yes=yes)
        _send_command(
            client=client,
            endpoints=[routes.CANCEL_JOB(job=name) for name in names],
            output=output,
            body={"no_outputs": True} if no_outputs else None,
        )


def pause(
    ctx: typer.Context,
    jobs: list[str] | None = _OPTIONAL_JOBS,
    all_: bool = _ALL,
    yes: bool = YES,
    output: Output = output_option(),
) -> None:
    """Save and release the machines; the job rents none until it is resumed.

    For several jobs you confirm by typing their number, or with --yes.

    \b
    Example:
      spotctl pause gpt
    """
    with connect(ctx) as client:
        names = _job_names(client, jobs, everything=all_)
        confirm_many("pause", "jobs", names, yes=yes)
        _send_command(
            client=client, endpoints=[routes.PAUSE_JOB(job=name) for name in names], output=output
        )


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
        _send_command(
            client=client,
            endpoints=[routes.RESUME_JOB(job=name) for name in dict.fromkeys(jobs)],
            output=output,
            body={"override_budget": override},
        )


def _job_names(client: Client, jobs: list[str] | None, *, everything: bool) -> list[str]:
    """Return the names of the jobs to change.

    Raises UserError if neither or both forms are given.
    """
    if bool(jobs) is everything:
        raise UserError("name jobs, or use --all", "spotctl ps lists them", ExitCode.USAGE)
    if everything:
        jobs = [
            job["name"] for job in client.call(routes.LIST_JOBS(), query={"limit": 10_000})["items"]
        ]
    return list(dict.fromkeys(jobs or ()))


def _send_command(
    client: Client,
    endpoints: list[Endpoint],
    output: Output,
    body: dict[str, Any] | None = None,
) -> None:
    """Send the command for every job, whatever happens to the others; raises the first error."""
    items, failed = [], []
    for endpoint in endpoints:
        try:
            job = client.call(endpoint, body)
        except UserError as error:
            failed.append(error)
            continue
        items.append(job)
        if output.is_table:
            print_message(f"{job['name']}: {job['phase']}")
            for warning in job.get("warnings", ()):
                print_message(f"warning: {warning}")
    emit(
        {"apiVersion": "spotd/v1", "kind": "JobList", "items": items}, output, lambda: None, "name"
    )
    for message in [*dict.fromkeys(error.text for error in failed)][1:]:
        print_message(f"error: {message}")
    if failed:
        raise failed[0]
