"""`spotctl cost compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from spotd.api_client.client import complete_job, connect, job_path
from spotd.api_client.wording import share_text
from spotd.base.errors import ExitCode, UserError
from spotd.base.text import money
from spotd.cli.cost_report import claim_lines
from spotd.cli.render import Column, Output, emit, output_option, print_table

_COLUMNS = (
    Column(""),
    Column("ON DEMAND", right=True),
    Column("AS IT RAN", right=True),
    Column("", cut=True),
)


def compare(
    ctx: typer.Context,
    job: str = typer.Argument("", metavar="[JOB]", help="One.", autocompletion=complete_job),
    file: Path | None = typer.Option(
        None, "--file", metavar="FILE", help="Line items of a TOML file instead of the ledger."
    ),
    output: Output = output_option(),
) -> None:
    """Compare a job as it ran with the same work on demand, in eight rows.

    Hours, cost, cost of a GPU-hour, interruptions, hours lost, quality and time. What is not
    measured is left open. docs/cost.md has the method.

    \b
    Example:
      spotctl cost compare gpt
      spotctl cost compare --file tests/spotd/money/case_study.toml
    """
    if bool(job) == bool(file):
        raise UserError("name one job, or --file", "spotctl cost compare gpt", ExitCode.USAGE)
    if file is not None:
        data = {"apiVersion": "spotd/v1", **_of_file(file)}
    else:
        with connect(ctx) as client:
            found = client.get(job_path(job, "/cost/report"))
        data = {name: found[name] for name in ("apiVersion", "job", "provisional", "comparison")}
    data["kind"] = "CostComparison"
    emit(data, output, lambda: _print(data), "job")


def _of_file(file: Path) -> dict[str, Any]:
    from spotd.cli.external_runs import read_case, read_facts
    from spotd.money.compare import compare as compared
    from spotd.money.compare import comparison_data
    from spotd.money.document import report_data
    from spotd.money.report import report_of

    account, claim = read_case(file)
    report = report_of(account)
    told = report_data(report, claim)
    told["comparison"] = comparison_data(compared(report, read_facts(file)))
    wanted = ("job", "provisional", "claim", "comparison")
    return {name: value for name, value in told.items() if name in wanted}


def _print(data: dict[str, Any]) -> None:
    print_table(_COLUMNS, [_row(one) for one in data["comparison"]])
    for line in claim_lines(data):
        print(line)


def _row(one: dict[str, Any]) -> list[str]:
    def cell(value: float | None) -> str:
        if value is None:
            return "-"
        if one["unit"] == "usd":
            return money(value)
        if one["unit"] == "share":
            return share_text(value)
        return f"{value:,.1f}" if one["unit"] == "h" else f"{value:,.0f}"

    return [one["name"], cell(one["on_demand"]), cell(one["actual"]), one["note"]]
