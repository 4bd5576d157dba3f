"""`spotctl results`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from spotd.cli.client import JOB, connect, job_path
from spotd.cli.render import HELP, Output, emit, output_option
from spotd.cli.text import clean

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)


@app.callback()
def results() -> None:
    """Keep what an evaluation of a job's model measured.

    \b
    Example:
      spotctl results import gpt examples/helpdesk.csv
    """


@app.command("import")
def import_results(
    ctx: typer.Context,
    job: str = JOB,
    file: Path = typer.Argument(metavar="FILE", help="CSV or JSON."),
    suite: str = typer.Option(
        "", "--suite", metavar="NAME", help="Which tests; without, as the file says or is called."
    ),
    output: Output = output_option(),
) -> None:
    """Put test cases passed, tokens a second and times to first token on record with a job.

    A row for each test case or request (case, passed, tokens, seconds, ttft_s; each may be left
    out), or a JSON object with the sums. The same file again changes nothing; another of the same
    suite is shown in its place. docs/phases.md.

    \b
    Example:
      spotctl results import gpt examples/helpdesk.csv
      spotctl results import gpt examples/inference.json --suite speed
    """
    from spotd.cli.resultfile import read_results

    told = asdict(read_results(file, suite))
    body = {name: value for name, value in told.items() if value not in (0.0, ())}
    with connect(ctx) as client:
        data = client.post(job_path(job, "/results"), body)
    emit(data, output, lambda: _print(data), "suite")


def _print(data: dict[str, Any]) -> None:
    known = "" if data["new"] else " (was on record already)"
    print(f"{clean(data['job'])}, {data['suite']}: {result_text(data)}{known}")


def share_text(share: float) -> str:
    """In percent, never rounded up: 100 % are all."""
    return f"{math.floor(share * 10_000 + 1e-6) / 100:.2f} %"


def result_text(data: dict[str, Any]) -> str:
    """What was measured, in words."""
    parts = []
    if data["cases"]:
        share = share_text(data["passed"] / data["cases"])
        parts.append(f"{data['passed']:,} of {data['cases']:,} cases passed ({share})")
    if data["tokens_per_s"]:
        parts.append(f"{data['tokens_per_s']:,.1f} tokens/s")
    if data["ttft_s"]:
        p95 = f" (p95 {data['ttft_p95_s']:.3f} s)" if data["ttft_p95_s"] else ""
        parts.append(f"first token after {data['ttft_s']:.3f} s{p95}")
    return ", ".join(parts)
