"""`spotd`: run the daemon, check its configuration, maintain its database."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import Exit

from spotd.base.clock import SystemClock
from spotd.cli.main import run_app
from spotd.cli.render import Output, emit
from spotd.cli.schema import exclusive_access, upgrade_database
from spotd.config.load import load_config
from spotd.daemon.daemon import run_daemon
from spotd.daemon.startup import make_folder
from spotd.store.backup import back_up, restore
from spotd.store.errors import StoreError
from spotd.store.schema import REVISIONS
from spotd.store.version import downgrade as downgrade_database

RENEWING = "0004"  # the first schema whose spotd moves on the expiry of machines

app = typer.Typer(
    name="spotd",
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
db = typer.Typer(help="Back up, restore, upgrade or downgrade the database.", rich_markup_mode=None)
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
    Path | None,
    typer.Option("--config", "-c", help="Path of config.toml; default: the standard paths."),
]


OutputOption = Annotated[
    Output, typer.Option("-o", "--output", metavar="FORM", help="table or json.")
]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE")]


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
    """Read the configuration, list all problems, and start nothing.

    \b
    Example:
      spotd check --config ./config.toml
    """
    loaded = load_config(config, to_start=True)
    typer.echo(f"{loaded.path}: good; state in {loaded.state_dir}, socket {loaded.socket}")


@db.command()
def upgrade(config: ConfigOption = None, output: OutputOption = Output.TABLE) -> None:
    """Upgrade the database to this program's schema, like `spotctl db upgrade`. Make a backup
    first.

    \b
    Example:
      systemctl stop spotd && spotd db upgrade && systemctl start spotd
    """
    upgrade_database(config, output)


@db.command()
def downgrade(
    revision: Annotated[str, typer.Argument(metavar="SCHEMA")],
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Downgrade the database to the schema of an older spotd, before you install that version.

    Data that only newer versions have is lost: make a backup first. The older version names the
    schema that it needs when it refuses to start.

    A spotd with a schema before 0004 does not renew the expiry of machines: running machines save
    and end after `limits.unattended_h`, even if they are healthy. Upgrade again before that.

    \b
    Example:
      systemctl stop spotd && spotd db downgrade 0002
    """
    loaded = load_config(config)
    with exclusive_access(loaded.database_url):
        now_us = SystemClock().now_us()
        before, after = downgrade_database(loaded.database_url, revision, now_us)
    warning = _cost_of(after, loaded.file.limits.unattended_h)
    data = {"kind": "Downgrade", "before": before, "after": after, "warning": warning}
    _emit(data, output, f"the database has schema {after}" + (f"\n{warning}" if warning else ""))


def _cost_of(schema: str, unattended_h: float) -> str:
    """Warn about machines that end while no spotd of this schema runs, or return ""."""
    if REVISIONS.index(schema) >= REVISIONS.index(RENEWING):
        return ""
    return (
        "a spotd with this schema does not renew machines: even healthy ones save and end within "
        f"{unattended_h:g} h, unless a newer spotd runs again before that"
    )


@db.command()
def backup(
    file: FileArgument, config: ConfigOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Copy the database into a new file, whether the daemon runs or not.

    The master key is not included: keep `spotd-key` safe in another place. To back up through a
    running daemon, also from another machine, use `spotctl db backup`.

    \b
    Example:
      spotd db backup /var/backups/spotd.backup
    """
    back_up(load_config(config).database_url, file, SystemClock().now_us())
    size = file.stat().st_size
    data = {"kind": "Backup", "file": str(file), "bytes": size}
    _emit(data, output, f"{file}: {size} bytes, checked")


@db.command("restore")
def restore_(
    file: FileArgument, config: ConfigOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Restore a backup as the database, if none exists. The deployment is then in quarantine.

    During a quarantine, spotd ends no machine because the database does not know it, so machines
    launched after the backup keep running and are listed. Also restore the master key (`spotd-key`
    in the state folder). When the daemon runs, check `spotctl orphans`, then run `spotctl
    quarantine release`. If another spotd uses the original database, or did so within the last two
    minutes, this one makes no changes.

    \b
    Example:
      spotd db restore /var/backups/spotd.backup && systemctl start spotd
    """
    loaded = load_config(config)
    if not loaded.file.database.url:
        make_folder(loaded.state_dir)
    reason = restore(loaded.database_url, file, SystemClock().now_us())
    data = {"kind": "Restore", "file": str(file), "quarantine": reason}
    _emit(data, output, f"restored; in quarantine: {reason}")


def _emit(data: dict[str, Any], output: Output, text: str) -> None:
    emit({"apiVersion": "spotd/v1", **data}, output, lambda: typer.echo(text), "kind")


def main(arguments: Sequence[str]) -> int:
    """Exit code of one command line."""
    return run_app(app, "spotd", arguments, plain_errors=(StoreError,))
