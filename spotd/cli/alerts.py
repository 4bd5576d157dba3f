"""`spotctl alerts`: test the alert routes."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode
from spotd.cli.groups import group
from spotd.cli.render import Cell, Column, Output, emit, output_option, print_table

app = group()


@app.callback()
def alerts() -> None:
    """Test the alert routes.

    \b
    Example:
      spotctl alerts test
    """


@app.command("test")
def send_test(
    ctx: typer.Context,
    route: str = typer.Argument("", metavar="ROUTE", help="Route to test; default: all."),
    output: Output = output_option(),
) -> None:
    """Send a test message and report whether it was delivered.

    \b
    Example:
      spotctl alerts test
      spotctl alerts test default
    """
    with connect(ctx) as client:
        data = client.call(routes.TEST_ALERT(), {"route": route})
    emit(data, output, lambda: _print(data), "route")
    if not data["ok"]:
        raise typer.Exit(ExitCode.FAILURE)


def _print(data: dict[str, Any]) -> None:
    rows = [
        [
            item["route"],
            Cell("delivered", "green") if item["ok"] else Cell("failed", "red"),
            item["error"],
        ]
        for item in data["items"]
    ]
    columns = (Column("ROUTE", rank=0), Column("RESULT", rank=0), Column("", wrap=True, rank=0))
    print_table(columns, rows)
