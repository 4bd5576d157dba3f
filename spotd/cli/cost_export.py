"""`spotctl cost export`: the ledger as FOCUS rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.cli.cost_report import when_us
from spotd.cli.render import Output, emit, output_option, print_message


def export(
    ctx: typer.Context,
    focus: Path = typer.Option(metavar="FILE", help="CSV file to write."),
    since: str = typer.Option(
        "", metavar="WHEN", help="Start: 30d ago, or a day like 2026-11-01 (UTC)."
    ),
    until: str = typer.Option("", metavar="WHEN", help="End. Default: now."),
    output: Output = output_option(),
) -> None:
    """Write the ledger as FOCUS 1.2 rows, with the column names of 1.3 as well, for finance tools.

    FILE.metadata.json, beside it, describes the version and the columns. Rows are estimates
    (x_Estimated) until a bill was reconciled. They are checked against the column rules before
    anything is written. See docs/cost.md for the columns.

    \b
    Example:
      spotctl cost export --focus november.csv --since 2026-11-01
    """
    from spotd.money.focus_rules import problems

    if focus.is_dir():
        raise UserError(f"--focus: {focus} is a folder", "name a file", ExitCode.USAGE)
    window = {"since_us": when_us(since, "--since"), "until_us": when_us(until, "--until")}
    with connect(ctx) as client:
        data = client.call(routes.FOCUS_COSTS(), query=window)
    columns, items = data["columns"], data["items"]
    violations = problems(columns, [dict(zip(columns, item, strict=True)) for item in items])
    if violations:
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        message = f"the rows break the rules of FOCUS: {violations[0]}{more}"
        raise UserError(message, "nothing was written; report this as a bug of spotd")
    metadata_file = focus.with_name(focus.name + ".metadata.json")
    try:
        with focus.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(items)
        metadata_file.write_text(json.dumps(data["metadata"], indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{focus} cannot be written: {error.strerror}", "name another") from None
    summary = {
        "apiVersion": "spotd/v1",
        "kind": "FocusExport",
        "file": str(focus),
        "rows": len(items),
    }
    emit(
        summary,
        output,
        lambda: print_message(f"{len(items)} rows in {focus}, {metadata_file.name} beside"),
        "file",
    )
