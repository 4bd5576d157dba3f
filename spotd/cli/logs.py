"""`spotctl logs`: a job's output over all its machines, also after they are gone."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from typing import Any

import typer

from spotd.api_client.client import JOB, Client, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.cli.durations import duration_s
from spotd.cli.log_text import Streams
from spotd.cli.render import Output, emit_line, output_option

_WAIT_S = 20
_AWAY_S = 600.0  # how long to wait for a daemon that restarts
_BYTES_PER_LINE = 400  # a generous guess, for --tail


def logs(
    ctx: typer.Context,
    job: str = JOB,
    follow: bool = typer.Option(
        False, "-f", "--follow", help="Follow the output until the job ends."
    ),
    tail: int = typer.Option(0, min=0, metavar="N", help="Start with the last N lines."),
    rank: int | None = typer.Option(None, min=0, help="Only of this machine of the job."),
    generation: int | None = typer.Option(None, "--gen", min=1, help="Only of this attempt."),
    stream: str = typer.Option("", help="Only this stream: setup, rank0, rank1, ..."),
    grep: str = typer.Option(
        "", metavar="REGEX", help="Only lines that match this regular expression."
    ),
    since: str = typer.Option(
        "", metavar="TIME", help="Only lines stored since: 10m ago, or 2026-11-28T10:00."
    ),
    timestamps: bool = typer.Option(False, "--timestamps", help="Print the time of each line."),
    raw: bool = typer.Option(False, help="Print control characters unchanged."),
    output: Output = output_option(),
) -> None:
    """Print a job's output from all its machines, oldest first.

    If a program overwrites a line, as progress bars do, only its last state is printed. On a
    terminal, control characters other than colours are removed. --raw prints every byte unchanged.
    A line on stderr marks each change of machine. A line's time is when the box stored it: a second
    or two after it was printed, or later after an interruption of the connection.

    \b
    Example:
      spotctl logs gpt
      spotctl logs gpt -f --tail 20
      spotctl logs gpt --gen 2 --stream setup
      spotctl logs gpt --grep 'loss|Error' --tail 5
      spotctl logs gpt --since 10m --timestamps
    """
    wanted = _pattern(grep, output)
    body: dict[str, Any] = {"rank": rank, "generation": generation, "stream": stream}
    body |= {"since_us": _since_us(since), "tail_bytes": 0 if wanted else tail * _BYTES_PER_LINE}
    live = follow and sys.stdout.isatty()  # such a terminal renders what it gets piece by piece
    _check(raw=raw, timestamps=timestamps)
    with connect(ctx) as client:
        job_data = client.call(routes.SHOW_JOB(job=job))
        streams = Streams(
            nodes={node["generation"]: node for node in job_data["nodes"]},
            show_rank=job_data["num_nodes"] > 1 and rank is None,
            safe=sys.stdout.isatty() and not raw,
            render=not raw and (timestamps or not live),
            wanted=wanted,
            timestamps=timestamps,
        )
        _print_logs(
            client=client,
            job_id=job_data["id"],
            body=body,
            streams=streams,
            follow=follow,
            tail=tail,
            output=output,
        )


def _check(*, raw: bool, timestamps: bool) -> None:
    """Raise UserError for options that exclude each other."""
    if raw and timestamps:
        message = "--raw passes every byte on, and --timestamps adds some"
        raise UserError(message, "leave one of them out", ExitCode.USAGE)


def _since_us(text: str) -> int:
    """Return the time that --since means: a span before now, an ISO time, or "" for 0. Raises
    UserError."""
    if not text:
        return 0
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        age_s = duration_s(text, "--since", "10m, or a time like 2026-11-28T10:00")
        return int((time.time() - age_s) * 1_000_000)


def _pattern(text: str, output: Output) -> re.Pattern[str] | None:
    """Compile --grep. Raises UserError."""
    if not text:
        return None
    if output is Output.JSON:
        message = "--grep is for lines, and -o json prints pieces of output"
        raise UserError(message, "leave one of them out", ExitCode.USAGE)
    try:
        return re.compile(text)
    except re.error as error:
        message = f"--grep {text!r} is no regular expression: {error}"
        raise UserError(message, "write \\( for a parenthesis itself", ExitCode.USAGE) from None


def _print_logs(
    client: Client,
    job_id: str,
    body: dict[str, Any],
    streams: Streams,
    *,
    follow: bool,
    tail: int,
    output: Output,
) -> None:
    body["wait_s"] = 0
    streams.tail(tail)
    while True:
        reply = client.with_retry(lambda: client.call(routes.READ_LOGS(job=job_id), body), _AWAY_S)
        for chunk in reply["chunks"]:
            if output is Output.JSON:
                emit_line(chunk)
            else:
                streams.feed(chunk)
        body["cursor"] = reply["cursor"]
        if reply["more"]:
            continue
        streams.caught_up()
        if reply["done"] or not follow:
            streams.close()
            return
        body["wait_s"] = _WAIT_S
