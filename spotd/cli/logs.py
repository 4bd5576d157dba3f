"""`spotctl logs`: a job's output over all its machines, also after they are gone."""

from __future__ import annotations

import sys
from typing import Any

import typer

from spotd.api_client.client import JOB, Client, connect, job_path
from spotd.cli.log_text import Streams
from spotd.cli.render import Output, emit_line, output_option

_WAIT_S = 20
_AWAY_S = 600.0
_BYTES_PER_LINE = 400  # a generous guess, for --tail


def logs(
    ctx: typer.Context,
    job: str = JOB,
    follow: bool = typer.Option(False, "-f", "--follow", help="Go on until the job ends."),
    tail: int = typer.Option(0, min=0, metavar="N", help="Begin with the last N lines."),
    rank: int | None = typer.Option(None, min=0, help="Of this machine of the job alone."),
    generation: int | None = typer.Option(None, "--gen", min=1, help="Of this attempt alone."),
    stream: str = typer.Option("", help="One stream alone: setup, rank0, rank1, ..."),
    raw: bool = typer.Option(False, help="Do not make control characters harmless."),
    output: Output = output_option(),
) -> None:
    """Print a job's output, over all its machines, oldest first.

    On a terminal, control characters other than colours are left out; in a pipe every byte is
    passed on as it was written. Where machines change, a line on stderr says so.

    \b
    Example:
      spotctl logs gpt
      spotctl logs gpt -f --tail 20
      spotctl logs gpt --gen 2 --stream setup
    """
    body: dict[str, Any] = {"rank": rank, "generation": generation, "stream": stream}
    with connect(ctx) as client:
        found = client.get(job_path(job))
        many = found["num_nodes"] > 1 and rank is None
        names = {node["generation"]: node for node in found["nodes"]}
        streams = Streams(names, many=many, safe=sys.stdout.isatty() and not raw)
        _copy(client, found["id"], body, streams, follow=follow, tail=tail, output=output)


def _copy(
    client: Client,
    job_id: str,
    body: dict[str, Any],
    streams: Streams,
    *,
    follow: bool,
    tail: int,
    output: Output,
) -> None:
    body["tail_bytes"] = tail * _BYTES_PER_LINE
    body["wait_s"] = 0
    streams.tail(tail)
    while True:
        reply = client.patiently(lambda: client.post(job_path(job_id, "/logs"), body), _AWAY_S)
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
