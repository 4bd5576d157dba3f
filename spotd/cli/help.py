"""`spotctl help`: the first page, every command by group, or the help of one command."""

from __future__ import annotations

import typer

from spotd.cli.commands import ENTRIES, SECTIONS


def help_(
    ctx: typer.Context,
    command: list[str] = typer.Argument(
        None, metavar="[all | COMMAND]", help="All commands by group, or one command."
    ),
) -> None:
    """Show the commands of every day, all commands by group, or the help of one.

    \b
    Example:
      spotctl help
      spotctl help all
      spotctl help ckpt pull
    """
    if command == ["all"]:
        _print_all()
        return
    root = ctx.find_root().command
    root.main([*(command or ()), "--help"], prog_name="spotctl", standalone_mode=False)


def _print_all() -> None:
    width = max(map(len, ENTRIES))
    for number, (title, section) in enumerate(SECTIONS.items()):
        typer.echo("\n" * bool(number) + f"{title}:")
        for name, entry in section.items():
            typer.echo(f"  {name:<{width}}  {entry.help}")
