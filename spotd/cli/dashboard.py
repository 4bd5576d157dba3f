"""`spotctl dashboard`: serve the dashboard on this machine."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.cli.render import Output, emit, output_option, print_message

if TYPE_CHECKING:
    from spotd.dashboard.server import DashboardServer


def dashboard(
    ctx: typer.Context,
    port: int = typer.Option(
        0, min=0, max=65535, metavar="N", help="Port on this machine; 0 takes any free one."
    ),
    no_browser: bool = typer.Option(False, "--no-browser", help="Only print the address."),
    output: Output = output_option(),
) -> None:
    """Show jobs, machines and costs in a browser, until Ctrl-C. It is read-only.

    This command serves the pages on your own machine, and they show what you may read. Their
    address contains a secret that is new each time: everyone who has it sees the same pages.

    \b
    Example:
      spotctl dashboard
      spotctl --host me@box dashboard --port 8500 --no-browser
    """
    from spotd.dashboard.api_cache import ApiCache, PageData, Query
    from spotd.dashboard.server import start_server

    api = ApiCache(ctx.obj)
    try:
        health = PageData()
        api.fetch(health, Query(routes.HEALTH()))
        for message, fix in filter(None, [health.away, *health.refused]):
            code = ExitCode.UNREACHABLE if health.away else ExitCode.AUTH
            raise UserError(message, fix, code)
        server = start_server(api, port)
        try:
            data = {"kind": "Dashboard", "url": server.url}
            emit(data, output, lambda: print(server.url), "url")
            sys.stdout.flush()
            _serve(server, browser=not no_browser and output.is_table)
        finally:
            server.stop()
    finally:
        api.close()


def _serve(server: DashboardServer, *, browser: bool) -> None:
    """Open the browser if possible, and serve until Ctrl-C."""
    print_message("Ctrl-C ends it")
    with tempfile.TemporaryDirectory(prefix="spotctl-") as folder:
        if browser and _has_display():
            webbrowser.open(_write_redirect(Path(folder), server.url))
        try:
            while server.web.thread.is_alive():
                server.web.thread.join(3600)
        except KeyboardInterrupt:
            return


def _write_redirect(folder: Path, url: str) -> str:
    """Write a page that redirects to the dashboard, and return its URL.

    All users of a machine see the arguments of a browser; the secret address must not be one.
    """
    path = folder / "dashboard.html"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(
            "<!doctype html><meta charset=utf-8><title>spotd</title>"
            f'<meta http-equiv=refresh content="0; url={url}"><a href="{url}">spotd</a>\n'
        )
    return path.as_uri()


def _has_display() -> bool:
    """Return whether a browser would open a window of its own, not take over the terminal."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform == "darwin" or bool(display)
