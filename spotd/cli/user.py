"""`spotctl user`: list users, disable and enable them."""

from __future__ import annotations

from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode
from spotd.cli.local_time import instant
from spotd.cli.render import (
    HELP,
    Cell,
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_table,
)

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)

_NAME = typer.Argument(metavar="NAME", help="A user of the daemon's box.")


@app.callback()
def user() -> None:
    """List, disable and enable users of the API and of machines.

    \b
    Example:
      spotctl user ls
    """


@app.command("ls")
def list_(ctx: typer.Context, output: Output = output_option()) -> None:
    """List users with unfinished jobs, and disabled users.

    \b
    Example:
      spotctl user ls
    """
    with connect(ctx) as client:
        data = client.call(routes.LIST_USERS())
    emit(data, output, lambda: _print(data["items"]), "name")


@app.command()
def disable(
    ctx: typer.Context,
    name: str = _NAME,
    transfer_to: str = typer.Option(
        "", "--transfer-to", metavar="NAME", help="User who takes over the unfinished jobs."
    ),
    output: Output = output_option(),
) -> None:
    """Disable a user at once: requests are refused, keys are removed from machines, and logins
    there end. The jobs continue under another user. A machine that does not answer is retried until
    it is gone. A user with a shell there may have left something behind: `spotctl pause` and
    `resume` move the job to another machine.

    \b
    Example:
      spotctl user disable mallory --transfer-to ada
    """
    with connect(ctx) as client:
        data = client.call(routes.DISABLE_USER(name=name), {"transfer_to": transfer_to})
    emit(data, output, lambda: _print_disabled(data), "name")
    if data["unreachable"]:
        raise typer.Exit(ExitCode.FAILURE)


def _print_disabled(data: dict[str, Any]) -> None:
    print_message(f"{data['name']} is disabled")
    if data["jobs"]:
        print_message(f"{len(data['jobs'])} jobs are {data['transferred_to']}'s now")
    for node in data["machines"]:
        print_message(f"access removed from {node}")
    for node, why in data["unreachable"].items():
        print_message(f"warning: may still have access to {node}, which is retried: {why}")


@app.command()
def enable(ctx: typer.Context, name: str = _NAME, output: Output = output_option()) -> None:
    """Enable a user again. Jobs that were transferred stay where they are.

    \b
    Example:
      spotctl user enable mallory
    """
    with connect(ctx) as client:
        data = client.call(routes.ENABLE_USER(name=name))
    emit(data, output, lambda: print_message(f"{name} is enabled"), "name")


def _print(items: list[dict[str, Any]]) -> None:
    columns = (
        Column("NAME", rank=0),
        Column("STATE", rank=0),
        Column("JOBS", right=True),
        Column("SINCE"),
    )
    rows = [
        [
            item["name"],
            Cell("disabled", "yellow") if item["disabled"] else Cell("enabled"),
            str(item["jobs"]),
            instant(item["disabled_at"]) if item["disabled_at"] else "-",
        ]
        for item in items
    ]
    print_table(columns, rows)
