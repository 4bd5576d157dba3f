"""`spotctl metrics`: metrics for Prometheus, alert rules and the Grafana board."""

from __future__ import annotations

import sys

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.cli.groups import group

app = group()


@app.callback()
def metrics() -> None:
    """Print metrics for Prometheus, alert rules and the Grafana dashboard (docs/metrics.md).

    \b
    Example:
      spotctl metrics show
      spotctl metrics rules
      spotctl metrics board
    """


@app.command()
def show(ctx: typer.Context) -> None:
    """Print the current value of every metric, in the Prometheus text format.

    \b
    Example:
      spotctl metrics show
    """
    with connect(ctx) as client:
        client.fetch(routes.METRICS(), sys.stdout.buffer)


@app.command()
def rules() -> None:
    """Print alert rules about spotd itself, for Prometheus' rule_files.

    \b
    Example:
      spotctl metrics rules
    """
    _print_file("rules.yml")


@app.command()
def board() -> None:
    """Print the Grafana dashboard, for Dashboards > Import.

    \b
    Example:
      spotctl metrics board
    """
    _print_file("grafana-board.json")


def _print_file(name: str) -> None:
    from importlib.resources import files

    sys.stdout.write(files("spotd.api.metrics").joinpath(name).read_text(encoding="utf-8"))
