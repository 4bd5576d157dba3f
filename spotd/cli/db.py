"""`spotctl db`: back up and upgrade the daemon's database."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import typer

from spotd.api_client.client import Client, Target, connect
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.cli.groups import group
from spotd.cli.render import Output, emit, output_option

app = group()


@app.callback()
def db() -> None:
    """Back up the daemon's database, or upgrade its schema.

    To restore or downgrade, stop the daemon and use `spotd db restore` and `spotd db downgrade` on
    the control box.

    \b
    Example:
      spotctl db backup
    """


@app.command()
def backup(
    ctx: typer.Context,
    file: Path = typer.Argument(
        None, metavar="[FILE]", help="A new file; default: named by the time."
    ),
    output: Output = output_option(),
) -> None:
    """Copy the database into a new file here, while the daemon keeps running.

    The copy is verified and readable only by you: it contains the job files. Its secrets are sealed
    with the master key, which is not included: keep `spotd-key` somewhere else.

    \b
    Example:
      spotctl db backup
      spotctl --host me@box db backup spotd.backup
    """
    path = file or Path(f"spotd-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.backup")
    with connect(ctx) as client:
        size, digest = _download_backup(client, path)
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
    config: Path = typer.Option(
        None, "--config", "-c", help="The daemon's config.toml; default: the standard paths."
    ),
    output: Output = output_option(),
) -> None:
    """Upgrade the database to this program's schema, on the box of a stopped daemon.

    It needs the rights of the daemon's user or of root. Make a backup first. The same as `spotd db
    upgrade`.

    \b
    Example:
      systemctl stop spotd
      spotctl db upgrade
      systemctl start spotd
    """
    target: Target = ctx.obj
    if target.host:
        message = "an upgrade is made on the box of the daemon, while that is stopped"
        raise UserError(message, f"ssh {target.host} spotctl db upgrade", ExitCode.USAGE)
    from spotd.cli.schema import upgrade_database
    from spotd.store.errors import StoreError

    try:
        upgrade_database(config, output)
    except StoreError as error:
        raise UserError(str(error), "spotctl db upgrade --help") from None


def _download_backup(client: Client, path: Path) -> tuple[int, str]:
    """Download a backup into a new file and verify it.

    Raises UserError, and leaves no file then.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(f"{path} exists already", "name a new file") from None
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        raise UserError(message, "name a file in a folder of yours") from None
    try:
        with os.fdopen(descriptor, "w+b") as file:
            headers = client.fetch(routes.BACK_UP_DATABASE(), file)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        if headers.get("X-Spotd-Sha256") != digest:
            raise UserError(
                f"the backup does not match its digest ({size} bytes arrived)", "run it again"
            )
    except BaseException:
        path.unlink()
        raise
    return size, digest
