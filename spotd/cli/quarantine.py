"""`spotctl quarantine`."""

from __future__ import annotations

from typing import Any

import typer

from spotd.cli.client import connect
from spotd.cli.render import HELP, Output, emit, output_option
from spotd.cli.text import clean

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)


@app.callback()
def quarantine() -> None:
    """While it lasts, no machine is ended for being unknown to the database.

    It begins when the database was restored from a backup. Release it when what the clouds list
    beside the known machines may be ended.

    \b
    Example:
      spotctl quarantine status
    """


@app.command()
def status(ctx: typer.Context, output: Output = output_option()) -> None:
    """Say whether there is a quarantine, and why.

    \b
    Example:
      spotctl quarantine status
    """
    with connect(ctx) as client:
        data = client.get("/v1/quarantine")
    emit(data, output, lambda: _print(data), "reason")


@app.command()
def release(ctx: typer.Context, output: Output = output_option()) -> None:
    """End the quarantine: machines that belong to no job are ended again, after a grace.

    \b
    Example:
      spotctl quarantine release
    """
    with connect(ctx) as client:
        data = client.post("/v1/quarantine/release")
    emit(data, output, lambda: _print(data), "reason")


def _print(data: dict[str, Any]) -> None:
    reason = clean(data["reason"])
    word = "quarantine" if data["active"] else "released; it was for"
    print(f"{word}: {reason}" if reason else "no quarantine")
