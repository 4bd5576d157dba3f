"""`spotctl secret`: values that jobs name, kept by the daemon, sealed with its master key."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import quote

import typer

from spotd.api_client.client import connect
from spotd.base.errors import ExitCode, UserError
from spotd.cli.render import HELP, Column, Output, emit, output_option, print_table, say

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)

_NAME = typer.Argument(metavar="NAME", help="As job files name it under secrets.")
_MAX_BYTES = 64 << 10


@app.callback()
def secret() -> None:
    """Have the daemon keep secrets that jobs name; change the key that seals them.

    \b
    Example:
      spotctl secret set HF_TOKEN
    """


@app.command("set")
def set_(ctx: typer.Context, name: str = _NAME, output: Output = output_option()) -> None:
    """Keep a value, from stdin or from a prompt that shows nothing. Jobs that name it get it when
    they start on a machine: a value that is set anew reaches running jobs with their next machine.

    \b
    Example:
      spotctl secret set HF_TOKEN
      spotctl secret set HF_TOKEN < token.txt
    """
    value = _read_value(name)
    with connect(ctx) as client:
        data = client.post(_path(name), {"value": value})
    emit(data, output, lambda: say(f"{name} is kept"), "name")


def _read_value(name: str) -> str:
    """Without its last line end. Never from the command line, which all users of a machine see."""
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"{name}: ")
    data = sys.stdin.buffer.read(_MAX_BYTES + 2)
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        text = f"the value of {name} is no text"
        raise UserError(text, "encode it, for example with base64", ExitCode.USAGE) from None


@app.command("ls")
def list_(ctx: typer.Context, output: Output = output_option()) -> None:
    """List names, with who set them and when; never values.

    \b
    Example:
      spotctl secret ls
    """
    with connect(ctx) as client:
        data = client.get("/v1/secrets")
    emit(data, output, lambda: _print(data["items"]), "name")


def _print(items: list[dict[str, Any]]) -> None:
    rows = [[i["name"], i["set_at"][:19].replace("T", " ") + "Z", i["set_by"]] for i in items]
    print_table((Column("NAME"), Column("SET AT"), Column("BY")), rows)


@app.command("rm")
def remove(ctx: typer.Context, name: str = _NAME, output: Output = output_option()) -> None:
    """Forget one that no unfinished job needs.

    \b
    Example:
      spotctl secret rm HF_TOKEN
    """
    with connect(ctx) as client:
        data = client.delete(_path(name))
    emit(data, output, lambda: say(f"{name} is forgotten"), "name")


@app.command()
def rotate(ctx: typer.Context, output: Output = output_option()) -> None:
    """Have the master key spotd-key-next take over, under a running daemon: everything that the old
    one sealed is sealed anew, all of it or nothing. Then make spotd-key-next the spotd-key. The old
    one still opens backups that were made before. What did not open before is left as it is, and
    named.

    \b
    Example:
      spotctl secret rotate
    """
    with connect(ctx) as client:
        data = client.post("/v1/key/rotate")
    text = "spotd-key-next is in force: move it to where spotd-key is, before the next rotation"
    for name in data["unread"]:
        text += f"\n{name} does not open with any key at hand, and was left as it is: set it anew, "
        text += "or submit its job again"
    emit(data, output, lambda: say(text), "epoch")


def _path(name: str) -> str:
    return f"/v1/secrets/{quote(name, safe='')}"
