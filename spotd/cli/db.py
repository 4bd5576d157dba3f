"""`spotctl db`."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import typer

from spotd.api_client.client import Client, Target, connect
from spotd.base.errors import ExitCode, UserError
from spotd.cli.render import HELP, Output, emit, output_option

app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP)


@app.callback()
def db() -> None:
    """Copy the daemon's database, or bring it to a new version's schema.

    The way back needs the daemon stopped and its configuration: `spotd db restore` and `spotd db
    downgrade` on the control box.

    \b
    Example:
      spotctl db backup
    """


@app.command()
def backup(
    ctx: typer.Context,
    file: Path = typer.Argument(None, metavar="[FILE]", help="A new file; else one named by time."),
    output: Output = output_option(),
) -> None:
    """Copy the database into a new file here, while the daemon goes on.

    The copy is checked, and for your eyes alone: it holds the job files. Secrets in it are sealed
    with the master key, which is not in it: keep `spotd-key` somewhere else.

    \b
    Example:
      spotctl db backup
      spotctl --host me@box db backup spotd.backup
    """
    path = file or Path(f"spotd-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.backup")
    with connect(ctx) as client:
        size, digest = _receive(client, path)
    data = {
        "apiVersion": "spotd/v1",
        "kind": "Backup",
        "file": str(path),
        "bytes": size,
        "sha256": digest,
    }
    emit(data, output, lambda: print(f"{path}: {size} bytes, checked"), "file")


@app.command()
def upgrade(
    ctx: typer.Context,
    config: Path = typer.Option(None, "--config", "-c", help="config.toml; else the usual places."),
    output: Output = output_option(),
) -> None:
    """Bring the database to this program's schema, on the box of a daemon that is stopped.

    It needs the rights of the daemon's user, or root's. Make a backup before. The same as `spotd
    db upgrade`.

    \b
    Example:
      systemctl stop spotd
      spotctl db upgrade
      systemctl start spotd
    """
    target: Target = ctx.obj
    if target.host:
        text = "an upgrade is made on the box of the daemon, while that is stopped"
        raise UserError(text, f"ssh {target.host} spotctl db upgrade", ExitCode.USAGE)
    from spotd.cli.schema import upgrade_here
    from spotd.store.interface import StoreError

    try:
        upgrade_here(config, output)
    except StoreError as error:
        raise UserError(str(error), "spotctl db upgrade --help") from None


def _receive(client: Client, path: Path) -> tuple[int, str]:
    """Raises UserError; then there is no such file."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(f"{path} exists already", "name a new file") from None
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror}"
        raise UserError(text, "name a file in a folder of yours") from None
    try:
        with os.fdopen(number, "w+b") as opened:
            headers = client.fetch("/v1/db/backup", opened)
            opened.flush()
            os.fsync(opened.fileno())
            opened.seek(0)
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            size = opened.tell()
        if headers.get("X-Spotd-Sha256") != digest:
            raise UserError(f"only {size} bytes came, or others than were sent", "run it again")
    except BaseException:
        path.unlink()
        raise
    return size, digest
