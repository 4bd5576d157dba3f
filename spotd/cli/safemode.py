"""`spotctl safe-mode`."""

from __future__ import annotations

from typing import Any

import typer

from spotd.cli.client import connect
from spotd.cli.render import HELP, Output, emit, output_option
from spotd.cli.text import clean

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)


@app.callback()
def safe_mode() -> None:
    """While it lasts, the daemon observes, saves and ends machines, and launches and starts none.

    It begins when the daemon crashed several times within minutes, and ends by itself when it has
    lived for a while (`[safe_mode]` in config.toml).

    \b
    Example:
      spotctl safe-mode status
    """


@app.command()
def status(ctx: typer.Context, output: Output = output_option()) -> None:
    """Say whether the daemon is in safe mode, and why.

    \b
    Example:
      spotctl safe-mode status
    """
    with connect(ctx) as client:
        data = client.get("/v1/safe-mode")
    emit(data, output, lambda: _print(data), "reason")


@app.command()
def leave(ctx: typer.Context, output: Output = output_option()) -> None:
    """End it now: the daemon launches and starts again.

    \b
    Example:
      spotctl safe-mode leave
    """
    with connect(ctx) as client:
        data = client.post("/v1/safe-mode/leave")
    emit(data, output, lambda: _print(data), "reason")


def _print(data: dict[str, Any]) -> None:
    reason = clean(data["reason"])
    word = "safe mode" if data["active"] else "left; it was for"
    print(f"{word}: {reason}" if reason else "no safe mode")
