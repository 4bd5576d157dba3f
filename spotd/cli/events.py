"""`spotctl events`: print what happened to one job or to all."""

from __future__ import annotations

from functools import partial
from typing import Any

import typer

from spotd.api_client.client import complete_job, connect
from spotd.api_client.wording import event_text
from spotd.api_routes import routes
from spotd.base.text import clean
from spotd.cli.local_time import instant
from spotd.cli.render import Output, emit, emit_line, output_option, print_text

_WAIT_S = 20
_AWAY_S = 600.0  # how long to wait for a daemon that restarts
_COLOURS = {"error": typer.colors.RED, "warning": typer.colors.YELLOW}


def events(
    ctx: typer.Context,
    job: str = typer.Argument(
        "", metavar="JOB", help="Only of this job.", autocompletion=complete_job
    ),
    follow: bool = typer.Option(False, "-f", "--follow", help="Follow new events."),
    last: int = typer.Option(50, "-n", "--last", min=1, help="Start with the newest N events."),
    output: Output = output_option(),
) -> None:
    """Print the events of one job or of all, oldest first.

    \b
    Example:
      spotctl events gpt
      spotctl events gpt -f
      spotctl events -n 200 -o json
    """
    with connect(ctx) as client:
        # By id, so that --follow stays with this job when another one takes its name.
        job_id = client.call(routes.SHOW_JOB(job=job))["id"] if job else ""
        data = client.call(routes.READ_EVENTS(), query={"job": job_id, "last": last})
        if not follow:
            emit(data, output, lambda: _print(data["items"], output, bool(job)), "id")
            return
        _print(data["items"], output, bool(job))
        cursor = data["cursor"]
        while True:
            query = {"job": job_id, "after": cursor, "wait_s": _WAIT_S}
            page = client.with_retry(
                partial(client.call, routes.READ_EVENTS(), query=query), _AWAY_S
            )
            _print(page["items"], output, bool(job))
            cursor = page["cursor"]


def _print(items: list[dict[str, Any]], output: Output, one_job: bool) -> None:
    for event in items:
        if output is Output.JSON:
            emit_line(event)
            continue
        at = instant(event["at"])
        name = "" if one_job or not event["job"] else f"{clean(event['job'])}: "
        colour = None if _plain() else _COLOURS.get(event["severity"])
        print_text(f"{at}  {name}{event_text(event)}", colour=colour)


def _plain() -> bool:
    """Return whether colours are off: NO_COLOR is set, or stdout is not a terminal."""
    import os
    import sys

    return bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()
