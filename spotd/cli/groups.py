"""Groups of sub-commands: `ls` is also `list`, and an unknown name is met with the nearest one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from spotd.base.errors import ExitCode, UserError
from spotd.cli.render import HELP

SAME = {"list": "ls", "ls": "list"}


class Group(TyperGroup):
    """Sub-commands, of which `ls` and `list` are one."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or super().get_command(
            ctx, SAME.get(cmd_name, "")
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise no_such_command(args[0], self.list_commands(ctx), ctx.command_path)
        return super().resolve_command(ctx, args)


class GroupWithDefault(Group):
    """Sub-commands of which `ls` may be left out, as in `spotctl outputs JOB`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, *SAME, "--help", "-h"}
        named = not args or args[0] in known
        return list(super().parse_args(ctx, args if named else ["ls", *args]))


class IntoCommand(TyperCommand):
    """A command that takes `--out`, the old name of a target folder, for `--into`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        renamed = [_into(argument) for argument in args[:end]]
        return list(super().parse_args(ctx, renamed + args[end:]))


def _into(argument: str) -> str:
    is_old = argument == "--out" or argument.startswith("--out=")
    return argument.replace("--out", "--into", 1) if is_old else argument


def group(*, invoke_without_command: bool = False, cls: type[Group] = Group) -> typer.Typer:
    """Return an empty group of sub-commands."""
    return typer.Typer(
        cls=cls,
        rich_markup_mode=None,
        add_completion=False,
        context_settings=HELP,
        invoke_without_command=invoke_without_command,
    )


def no_such_command(name: str, known: Iterable[str], path: str) -> UserError:
    """Return the error for an unknown command, with the nearest known one."""
    close = get_close_matches(name, [*known], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return UserError(f"no such command {name!r}{hint}", f"{path} --help", ExitCode.USAGE)
