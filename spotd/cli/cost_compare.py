"""`spotctl cost compare`: a job as it ran beside the same work on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import complete_job, connect
from spotd.api_client.wording import share_text
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import money
from spotd.cli.cost_report import claim_lines
from spotd.cli.render import Column, Output, emit, output_option, print_table, print_text

_COLUMNS = (
    Column(""),
    Column("ON DEMAND", right=True),
    Column("AS IT RAN", right=True),
    Column("", wrap=True),
)


def compare(
    ctx: typer.Context,
    job: str = typer.Argument(
        "", metavar="[JOB]", help="Compare this job.", autocompletion=complete_job
    ),
    file: Path | None = typer.Option(
        None,
        "--file",
        metavar="FILE",
        help="Read the line items from a TOML file instead of the ledger.",
    ),
    output: Output = output_option(),
) -> None:
    """Compare a job as it ran with the same work on demand.

    The rows are hours, cost, cost per GPU-hour, interruptions, lost hours, quality and time. A
    value that was not measured is "-". See docs/cost.md for the method.

    \b
    Example:
      spotctl cost compare gpt
      spotctl cost compare --file tests/spotd/money/case_study.toml
    """
    if bool(job) == bool(file):
        raise UserError("name one job, or --file", "spotctl cost compare gpt", ExitCode.USAGE)
    if file is not None:
        data = {"apiVersion": "spotd/v1", **_file_comparison(file)}
    else:
        with connect(ctx) as client:
            report = client.call(routes.JOB_COST_REPORT(job=job))
        data = {name: report[name] for name in ("apiVersion", "job", "provisional", "comparison")}
    data["kind"] = "CostComparison"
    emit(data, output, lambda: _print(data), "job")


def _file_comparison(file: Path) -> dict[str, Any]:
    from spotd.cli.external_runs import read_case, read_facts
    from spotd.money.compare import compare as compare_runs
    from spotd.money.compare import comparison_data
    from spotd.money.document import report_data
    from spotd.money.report import report_of

    account, claim = read_case(file)
    report = report_of(account)
    data = report_data(report, claim)
    data["comparison"] = comparison_data(compare_runs(report, read_facts(file)))
    fields = ("job", "provisional", "claim", "comparison")
    return {name: value for name, value in data.items() if name in fields}


def _print(data: dict[str, Any]) -> None:
    print_table(_COLUMNS, [_row(row) for row in data["comparison"]])
    for line in claim_lines(data):
        print_text(line)


def _row(row: dict[str, Any]) -> list[str]:
    def cell(value: float | None) -> str:
        if value is None:
            return "-"
        if row["unit"] == "usd":
            return money(value)
        if row["unit"] == "share":
            return share_text(value)
        return f"{value:,.1f}" if row["unit"] == "h" else f"{value:,.0f}"

    return [row["name"], cell(row["on_demand"]), cell(row["actual"]), row["note"]]
