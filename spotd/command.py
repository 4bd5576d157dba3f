"""`spotd`: run the daemon, look at its configuration, bring its database up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from spotd.config import load_config
from spotd.daemon import run_daemon
from spotd.errors import ExitCode, UserError
from spotd.store.base import StoreError
from spotd.store.version import upgrade as upgrade_database

app = typer.Typer(
    name="spotd",
    help="Keeps training jobs alive on spot machines. Drive it with `spotctl`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
db = typer.Typer(help="The database.", no_args_is_help=True)
app.add_typer(db, name="db")

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
    run_daemon(load_config(config))


@app.command()
def check(config: ConfigOption = None) -> None:
    """Read the configuration, say everything that is wrong with it, and start nothing.

    \b
    Example:
      spotd check --config ./config.toml
    """
    found = load_config(config)
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


def main() -> int:
    """Exit code of one command line. What a user can mend is one clear text on stderr."""
    try:
        app(standalone_mode=False)
    except UserError as error:
        print(f"spotd: {error}", file=sys.stderr)
        return int(error.exit_code)
    except StoreError as error:
        print(f"spotd: {error}", file=sys.stderr)
        return int(ExitCode.FAILURE)
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return int(ExitCode.INTERRUPTED)
    return 0


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
