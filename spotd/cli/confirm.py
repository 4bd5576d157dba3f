"""Confirmation of commands that end many things at once: the user types their number."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from spotd.base.errors import ExitCode, UserError

_SHOWN = 10
YES = typer.Option(False, "--yes", "-y", help="Do not ask for confirmation.")


def confirm_many(verb: str, noun: str, names: Sequence[str], *, yes: bool) -> None:
    """Ask the user to type the number of `names` if there are several.

    Raises UserError if the answer is another one, or if stdin is not a terminal.
    """
    count = len(names)
    if yes or count < 2:
        return
    if not sys.stdin.isatty():
        raise UserError(
            f"{verb} of {count} {noun} was not confirmed, and stdin is not a terminal",
            f"spotctl ... --yes, if all {count} are meant",
            ExitCode.USAGE,
        )
    more = f", and {count - _SHOWN} more" if count > _SHOWN else ""
    typer.echo(f"{verb} {count} {noun}: {', '.join(names[:_SHOWN])}{more}", err=True)
    typed = typer.prompt("Type their number to continue", default="", show_default=False, err=True)
    if typed.strip() != str(count):
        raise UserError(
            f"nothing was done: {typed.strip() or 'nothing'!r} is not {count}",
            f"run it again and type {count}",
            ExitCode.USAGE,
        )
