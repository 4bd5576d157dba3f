"""Root command of `spotctl`: global options and lazily imported sub-commands."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import Exit

from spotd.cli.commands import DAILY, ENTRIES, MOVED
from spotd.cli.groups import SAME, IntoCommand, no_such_command
from spotd.cli.main import run_app
from spotd.cli.render import print_message

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(TyperGroup):
    """Group of the commands in `commands.ENTRIES`; a module is imported when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        return list(ENTRIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        entry = ENTRIES.get("ps" if cmd_name in SAME else cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"spotd.cli.{entry.module}")
        target = getattr(module, entry.attribute)
        command = typer.main.get_command(
            target if isinstance(target, typer.Typer) else _single_command_app(target)
        )
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in MOVED:
            new = MOVED[args[0]]
            if not ctx.resilient_parsing:
                print_message(f"spotctl {args[0]} is now spotctl {' '.join(new)}")
            args = [*new, *args[1:]]
        if args[0] not in {*ENTRIES, *SAME} and not args[0].startswith("-"):
            raise no_such_command(args[0], ENTRIES, "spotctl")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Every day"):
            formatter.write_dl([(line, ENTRIES[name].help) for name, line in DAILY.items()])
        with formatter.section("More"):
            formatter.write_dl(
                [
                    ("spotctl help all", "Every command, by group."),
                    ("spotctl help COMMAND", "The help of one command."),
                ]
            )


def _single_command_app(function: Callable[..., Any]) -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    settings = getattr(function, "context_settings", {})
    kind = IntoCommand if "into" in signature(function).parameters else TyperCommand
    app.command(cls=kind, context_settings=_CONTEXT | settings)(function)
    return app


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    context_settings=_CONTEXT,
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"spotctl {version('spotd')}")
        raise Exit


@app.callback()
def root(
    ctx: typer.Context,
    host: str = typer.Option(
        "",
        "--host",
        envvar="SPOTCTL_HOST",
        metavar="USER@BOX",
        help="Reach the daemon of another machine over your own ssh.",
    ),
    socket: str = typer.Option(
        "",
        "--socket",
        envvar="SPOTCTL_SOCKET",
        metavar="PATH",
        help="The daemon's socket, on the machine of --host if given.",
    ),
    utc: bool = typer.Option(
        False, "--utc", help="Show times in UTC instead of your zone; JSON always is."
    ),
    _version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Keep training jobs alive on spot GPUs, through every preemption.

    \b
    Example:
      spotctl run examples/minimal.yaml
      spotctl --host me@box ps
    """
    from spotd.api_client.client import Target
    from spotd.cli.local_time import use_utc

    use_utc(utc)
    ctx.obj = Target(host=host, socket=socket)


def run(arguments: Sequence[str]) -> int:
    """Run one command line of `spotctl` and return the exit code."""
    return run_app(app, "spotctl", arguments)
