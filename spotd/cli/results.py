"""`spotctl results`: measurements of a job's model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import JOB, connect
from spotd.api_client.wording import result_text
from spotd.api_routes import routes
from spotd.base.text import clean
from spotd.cli.groups import group
from spotd.cli.render import Output, emit, output_option

app = group()


@app.callback()
def results() -> None:
    """Store the results of evaluating a job's model.

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
        "",
        "--suite",
        metavar="NAME",
        help="Name of the test suite; default: from the file or its name.",
    ),
    output: Output = output_option(),
) -> None:
    """Store test cases passed, tokens per second and times to first token with a job.

    FILE has a row for each test case or request (case, passed, tokens, seconds, ttft_s; each may be
    left out), or is a JSON object with the totals. Importing the same file again changes nothing;
    another file of the same suite replaces it. See docs/phases.md.

    \b
    Example:
      spotctl results import gpt examples/helpdesk.csv
      spotctl results import gpt examples/inference.json --suite speed
    """
    from spotd.cli.result_file import read_results

    evaluation = asdict(read_results(file, suite))
    body = {name: value for name, value in evaluation.items() if value not in (0.0, ())}
    with connect(ctx) as client:
        data = client.call(routes.IMPORT_RESULTS(job=job), body)
    emit(data, output, lambda: _print(data), "suite")


def _print(data: dict[str, Any]) -> None:
    known = "" if data["new"] else " (was on record already)"
    print(f"{clean(data['job'])}, {data['suite']}: {result_text(data)}{known}")
