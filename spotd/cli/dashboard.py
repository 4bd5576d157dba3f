"""`spotctl dashboard`."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spotd.base.errors import ExitCode, UserError
from spotd.cli.render import Output, emit, say

if TYPE_CHECKING:
    from spotd.dashboard.server import DashboardServer


def dashboard(
    ctx: typer.Context,
    port: int = typer.Option(
        0, min=0, max=65535, metavar="N", help="Of this machine; 0 is any free one."
    ),
    no_browser: bool = typer.Option(False, "--no-browser", help="Print the address alone."),
    output: Output = typer.Option(Output.TABLE, "-o", "--output", help="table, json or name."),
) -> None:
    """Show jobs, machines and money in a browser, until Ctrl-C. It can look, and change nothing.

    The pages are served by this command on your own machine, and read what you may read. Their
    address has a secret in it that is new each time: whoever has it sees what you see.

    \b
    Example:
      spotctl dashboard
      spotctl --host me@box dashboard --port 8500 --no-browser
    """
    from spotd.dashboard.api_cache import ApiCache, PageData, Query
    from spotd.dashboard.server import open_door

    source = ApiCache(ctx.obj)
    try:
        reading = PageData()
        source.ask(reading, Query("/v1/health"))
        for text, advice in filter(None, [reading.away, *reading.refused]):
            code = ExitCode.UNREACHABLE if reading.away else ExitCode.AUTH
            raise UserError(text, advice, code)
        door = open_door(source, port)
        try:
            data = {"kind": "Dashboard", "url": door.url}
            emit(data, output, lambda: print(door.url), "url")
            sys.stdout.flush()
            _show(door, browser=not no_browser and output is Output.TABLE)
        finally:
            door.stop()
    finally:
        source.close()


def _show(door: DashboardServer, *, browser: bool) -> None:
    """Until the person has seen enough."""
    say("Ctrl-C ends it")
    with tempfile.TemporaryDirectory(prefix="spotctl-") as folder:
        if browser and _graphical():
            webbrowser.open(_leading_to(Path(folder), door.url))
        try:
            while door.thread.is_alive():
                door.thread.join(3600)
        except KeyboardInterrupt:
            return


def _leading_to(folder: Path, url: str) -> str:
    """A page of our own that leads there. All users of a machine see the arguments that a browser
    is started with; the secret is not among them."""
    path = folder / "dashboard.html"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(
            "<!doctype html><meta charset=utf-8><title>spotd</title>"
            f'<meta http-equiv=refresh content="0; url={url}"><a href="{url}">spotd</a>\n'
        )
    return path.as_uri()


def _graphical() -> bool:
    """A browser of the terminal would take the terminal."""
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform == "darwin" or bool(shown)
