"""`spotctl user`: who has jobs, shutting somebody out, letting somebody in again."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import typer

from spotd.api_client.client import connect
from spotd.base.errors import ExitCode
from spotd.cli.render import HELP, Cell, Column, Output, emit, output_option, print_table, say

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)

_NAME = typer.Argument(metavar="NAME", help="A user of the daemon's box.")


@app.callback()
def user() -> None:
    """List users; shut one out of the API and of all machines.

    \b
    Example:
      spotctl user ls
    """


@app.command("ls")
def list_(ctx: typer.Context, output: Output = output_option()) -> None:
    """List who has unfinished jobs, and who is shut out.

    \b
    Example:
      spotctl user ls
    """
    with connect(ctx) as client:
        data = client.get("/v1/users")
    emit(data, output, lambda: _print(data["items"]), "name")


@app.command()
def disable(
    ctx: typer.Context,
    name: str = _NAME,
    transfer_to: str = typer.Option(
        "", "--transfer-to", metavar="NAME", help="Who gets the unfinished jobs."
    ),
    output: Output = output_option(),
) -> None:
    """Shut a user out at once: no request is answered, keys on machines are taken away, and logins
    there end. The jobs go on, as somebody else's. A machine that does not answer now is asked again
    until it is gone. Who had a shell there could have left something behind: `spotctl pause` and
    `resume` give the job another machine.

    \b
    Example:
      spotctl user disable mallory --transfer-to ada
    """
    with connect(ctx) as client:
        data = client.post(f"{_path(name)}/disable", {"transfer_to": transfer_to})
    emit(data, output, lambda: _tell(data), "name")
    if data["unreachable"]:
        raise typer.Exit(ExitCode.FAILURE)


def _tell(data: dict[str, Any]) -> None:
    say(f"{data['name']} is disabled")
    if data["jobs"]:
        say(f"{len(data['jobs'])} jobs are {data['transferred_to']}'s now")
    for node in data["machines"]:
        say(f"put out of {node}")
    for node, why in data["unreachable"].items():
        say(f"warning: may still be in {node}, which is asked again: {why}")


@app.command()
def enable(ctx: typer.Context, name: str = _NAME, output: Output = output_option()) -> None:
    """Let a user in again. Jobs that were transferred stay where they are.

    \b
    Example:
      spotctl user enable mallory
    """
    with connect(ctx) as client:
        data = client.post(f"{_path(name)}/enable")
    emit(data, output, lambda: say(f"{name} is enabled"), "name")


def _print(items: list[dict[str, Any]]) -> None:
    columns = (Column("NAME"), Column("STATE"), Column("JOBS", right=True), Column("SINCE"))
    rows = [
        [
            item["name"],
            Cell("disabled", "yellow") if item["disabled"] else Cell("enabled"),
            str(item["jobs"]),
            f"{item['disabled_at'][:19].replace('T', ' ')}Z" if item["disabled_at"] else "-",
        ]
        for item in items
    ]
    print_table(columns, rows)


def _path(name: str) -> str:
    return f"/v1/users/{quote(name, safe='')}"
