"""Options that are made from a table are options like any other."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from spotd.cli.more_options import with_options

OPTIONS = {
    "north": (str, typer.Option("", "--north", metavar="ID", help="Of the north.")),
    "south": (int, typer.Option(0, "--to-south", help="Of the south.")),
}
app = typer.Typer()


@app.command()
@with_options(OPTIONS, before="last")
def command(
    first: str = typer.Option("", "--first"),
    *,
    last: str = typer.Option("", "--last"),
    **given: object,
) -> None:
    print(first, last, given)


def test_the_command_gets_them_by_name() -> None:
    done = CliRunner().invoke(app, ["--first", "a", "--to-south", "3", "--last", "z"])
    assert done.exit_code == 0, done.output
    assert done.output == "a z {'north': '', 'south': 3}\n"


def test_their_types_are_checked() -> None:
    assert CliRunner().invoke(app, ["--to-south", "far"]).exit_code == 2


def test_help_has_them_where_they_belong() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(name) for name in ("--first", "--north", "--to-south", "--last")]
    assert places == sorted(places)
