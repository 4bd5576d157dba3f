"""`spotctl cost export`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import typer

from spotd.api_client.client import connect
from spotd.base.errors import ExitCode, UserError
from spotd.cli.cost_report import when_us
from spotd.cli.render import Output, emit, output_option, say


def export(
    ctx: typer.Context,
    focus: Path = typer.Option(metavar="FILE", help="Where the rows go, as CSV."),
    since: str = typer.Option("", metavar="WHEN", help="30d ago, or a day like 2026-11-01 (UTC)."),
    until: str = typer.Option("", metavar="WHEN", help="Up to then; to now if not given."),
    output: Output = output_option(),
) -> None:
    """Write the ledger as FOCUS 1.2 rows, with the names of 1.3 beside, for tools of finance.

    FILE.metadata.json, beside it, says which version and columns these are. Rows are estimates
    (x_Estimated) until a bill was reconciled. They are checked against the rules of the columns
    before anything is written. docs/cost.md says what each column has.

    \b
    Example:
      spotctl cost export --focus november.csv --since 2026-11-01
    """
    from spotd.money.focus_rules import problems

    if focus.is_dir():
        raise UserError(f"--focus: {focus} is a folder", "name a file", ExitCode.USAGE)
    window = {"since_us": when_us(since, "--since"), "until_us": when_us(until, "--until")}
    with connect(ctx) as client:
        data = client.get("/v1/costs/focus", **window)
    columns, items = data["columns"], data["items"]
    wrong = problems(columns, [dict(zip(columns, item, strict=True)) for item in items])
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        text = f"the rows break the rules of FOCUS: {wrong[0]}{more}"
        raise UserError(text, "nothing was written; report this as a fault of spotd")
    beside = focus.with_name(focus.name + ".metadata.json")
    try:
        with focus.open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(columns)
            lines.writerows(items)
        beside.write_text(json.dumps(data["metadata"], indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{focus} cannot be written: {error.strerror}", "name another") from None
    done = {"apiVersion": "spotd/v1", "kind": "FocusExport", "file": str(focus), "rows": len(items)}
    emit(done, output, lambda: say(f"{len(items)} rows in {focus}, {beside.name} beside"), "file")
