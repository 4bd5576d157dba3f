"""`spotctl user`: list users, disable and enable them, and give them tokens for the dashboard."""

from __future__ import annotations

from enum import Enum
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode
from spotd.cli.durations import duration_s
from spotd.cli.groups import group
from spotd.cli.local_time import instant
from spotd.cli.render import (
    Cell,
    Column,
    Output,
    emit,
    output_option,
    print_message,
    print_table,
)

app = group()


class Role(str, Enum):
    """The most that a token allows."""

    VIEWER = "viewer"
    ADMIN = "admin"


_NAME = typer.Argument(
    metavar="NAME", help="A user of the daemon's box, or a person who logs in to the dashboard."
)


@app.callback()
def user() -> None:
    """List, disable and enable users of the API and of machines; tokens for the dashboard.

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
    there and at the dashboard end. Tokens that the user made for others are revoked. The jobs
    continue under another user. A machine that does not answer is retried until it is gone. A user
    with a shell there may have left something behind: `spotctl pause` and `resume` move the job to
    another machine.

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
    if not data["known"]:
        print_message("warning: no account, job, token or session has this name")
    if data["sessions"]:
        print_message(f"{data['sessions']} sessions of the dashboard have ended")
    for token in data["revoked_tokens"]:
        print_message(f"token {token['id']} of {token['user']} is void")
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


@app.command()
def token(
    ctx: typer.Context,
    name: str = typer.Argument(metavar="NAME", help="A user of the daemon's box, or any person."),
    role: Role | None = typer.Option(
        None,
        "--role",
        help="The most that the token allows; needed for a person without an account on the box.",
    ),
    expires: str = typer.Option("90d", "--expires", metavar="DURATION", help="At most 366d."),
    output: Output = output_option(),
) -> None:
    """Make a token with which a person logs in to the team's dashboard. It is printed once.

    A user of the box has the rights of the user's groups there, limited by --role.

    \b
    Example:
      spotctl user token ada --role admin
      spotctl user token eve@example.org --role viewer --expires 30d
    """
    lifetime_s = int(duration_s(expires, "--expires", "30d, or 12h"))
    body = {"role": role.value if role else "", "lifetime_s": lifetime_s}
    with connect(ctx) as client:
        data = client.call(routes.MAKE_TOKEN(name=name), body)
    emit(data, output, lambda: _print_token(data), "token")


def _print_token(data: dict[str, Any]) -> None:
    print(data["token"])
    expires = data["expires_at"][:10]
    print_message(f"{data['user']} logs in with it until {expires}. It is not shown again.")
    print_message(f"to revoke it: spotctl user revoke {data['id']}")


@app.command()
def tokens(ctx: typer.Context, output: Output = output_option()) -> None:
    """List the tokens for the team's dashboard, without the secrets, which are not stored.

    \b
    Example:
      spotctl user tokens
    """
    with connect(ctx) as client:
        data = client.call(routes.LIST_TOKENS())
    emit(data, output, lambda: _print_tokens(data["items"]), "id")


def _print_tokens(items: list[dict[str, Any]]) -> None:
    columns = [Column(name) for name in ("ID", "USER", "ROLE", "EXPIRES", "MADE BY")]
    rows = [
        [
            item["id"],
            item["user"],
            item["role"] or "by groups",
            Cell("expired", "red") if item["expired"] else Cell(item["expires_at"][:10]),
            item["made_by"],
        ]
        for item in items
    ]
    print_table(columns, rows)


@app.command()
def revoke(
    ctx: typer.Context,
    token_id: str = typer.Argument(metavar="ID", help="As `spotctl user tokens` lists it."),
    output: Output = output_option(),
) -> None:
    """Revoke a token at once: nobody can log in with it, and who has is logged out.

    \b
    Example:
      spotctl user revoke 3f9a01c2
    """
    with connect(ctx) as client:
        data = client.call(routes.REVOKE_TOKEN(name=token_id))
    emit(data, output, lambda: print_message(f"{data['user']}'s token {token_id} is void"), "id")
