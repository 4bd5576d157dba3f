"""`spotd`: run the daemon, look at its configuration, bring its database up to date."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import Exit

from spotd.cli.main import run_app
from spotd.config import load_config
from spotd.daemon import run_daemon
from spotd.store.base import StoreError
from spotd.store.version import upgrade as upgrade_database

app = typer.Typer(
    name="spotd",
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
db = typer.Typer(help="The database.", rich_markup_mode=None)
app.add_typer(db, name="db")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spotd {version('spotd')}")
        raise Exit


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Keep training jobs alive on spot machines: the daemon. Drive it with `spotctl`."""


ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="config.toml; else the usual places.")
]


@app.command()
def run(config: ConfigOption = None) -> None:
    """Run the daemon until SIGTERM.

    \b
    Example:
      spotd run --config /etc/spotd/config.toml
    """
    raise Exit(run_daemon(load_config(config, to_start=True)))


@app.command()
def check(config: ConfigOption = None) -> None:
    """Read the configuration, say everything that is wrong with it, and start nothing.

    \b
    Example:
      spotd check --config ./config.toml
    """
    found = load_config(config, to_start=True)
    typer.echo(f"{found.path}: good; state in {found.state_dir}, socket {found.socket}")


@db.command()
def upgrade(config: ConfigOption = None) -> None:
    """Bring the database to this program's schema.

    \b
    Example:
      systemctl stop spotd && spotd db upgrade && systemctl start spotd
    """
    found = load_config(config)
    upgrade_database(found.database_url)
    typer.echo("the database is up to date")


def main(arguments: Sequence[str]) -> int:
    """Exit code of one command line."""
    return run_app(app, "spotd", arguments, told=(StoreError,))


def entry() -> None:
    """The console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry()
