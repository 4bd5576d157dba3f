"""`spotctl secret`: values that jobs name, stored by the daemon and sealed with its master key."""

from __future__ import annotations

import sys
from typing import Any

import typer

from spotd.api_client.client import connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.cli.groups import group
from spotd.cli.local_time import instant
from spotd.cli.render import Column, Output, emit, output_option, print_message, print_table

app = group()

_NAME = typer.Argument(metavar="NAME", help="Name of the secret, as under secrets in job files.")
_MAX_BYTES = 64 << 10


@app.callback()
def secret() -> None:
    """Store secrets that jobs name; rotate the key that seals them.

    \b
    Example:
      spotctl secret set HF_TOKEN
    """


@app.command("set")
def set_(ctx: typer.Context, name: str = _NAME, output: Output = output_option()) -> None:
    """Store a value, read from stdin or from a hidden prompt. Jobs that name the secret get it when
    they start on a machine: a new value reaches a running job with its next machine.

    \b
    Example:
      spotctl secret set HF_TOKEN
      spotctl secret set HF_TOKEN < token.txt
    """
    value = _read_value(name)
    with connect(ctx) as client:
        data = client.call(routes.SET_SECRET(name=name), {"value": value})
    emit(data, output, lambda: print_message(f"{name} is stored"), "name")


def _read_value(name: str) -> str:
    """Read the value from a prompt or from stdin, without its last line end.

    Never from the command line, which all users of a machine see.
    """
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"{name}: ")
    data = sys.stdin.buffer.read(_MAX_BYTES + 2)
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        message = f"the value of {name} is not text"
        raise UserError(message, "encode it, for example with base64", ExitCode.USAGE) from None


@app.command("ls")
def list_(ctx: typer.Context, output: Output = output_option()) -> None:
    """List the names of secrets, with who set them and when; never the values.

    \b
    Example:
      spotctl secret ls
    """
    with connect(ctx) as client:
        data = client.call(routes.LIST_SECRETS())
    emit(data, output, lambda: _print(data["items"]), "name")


def _print(items: list[dict[str, Any]]) -> None:
    rows = [[item["name"], instant(item["set_at"]), item["set_by"]] for item in items]
    print_table((Column("NAME", rank=0), Column("SET AT"), Column("BY")), rows)


@app.command("rm")
def remove(ctx: typer.Context, name: str = _NAME, output: Output = output_option()) -> None:
    """Delete a secret that no unfinished job needs.

    \b
    Example:
      spotctl secret rm HF_TOKEN
    """
    with connect(ctx) as client:
        data = client.call(routes.REMOVE_SECRET(name=name))
    emit(data, output, lambda: print_message(f"{name} is deleted"), "name")


@app.command()
def rotate(ctx: typer.Context, output: Output = output_option()) -> None:
    """Switch the running daemon to the master key spotd-key-next: everything that the old key
    sealed is sealed again, all of it or nothing. Then rename spotd-key-next to spotd-key. The old
    key still opens earlier backups. Values that could not be opened before are left unchanged, and
    named.

    \b
    Example:
      spotctl secret rotate
    """
    with connect(ctx) as client:
        data = client.call(routes.ROTATE_KEY())
    message = "spotd-key-next is in force: move it to where spotd-key is, before the next rotation"
    for name in data["unread"]:
        message += (
            f"\n{name} does not open with any key at hand, and was left as it is: set it again, "
        )
        message += "or submit its job again"
    emit(data, output, lambda: print_message(message), "epoch")
