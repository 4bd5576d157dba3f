"""Schema upgrade of a database that no daemon uses, for `spotd db` and `spotctl db`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from spotd.base.clock import SystemClock
from spotd.base.errors import UserError
from spotd.base.lock import hold_database
from spotd.cli.render import Output, emit
from spotd.config.load import load_config
from spotd.store.engine import file_of
from spotd.store.version import upgrade


@contextmanager
def exclusive_access(url: str) -> Iterator[None]:
    """Hold the lock of a database file for the block, so that no daemon has it open.

    For a database server it does nothing; leases protect that. Raises UserError.
    """
    file = file_of(url)
    lock: AbstractContextManager[object] = nullcontext()
    try:
        if file is not None and file.exists():
            lock = hold_database(file)
    except OSError as error:
        message = f"the database {file} cannot be used: {error.strerror}"
        raise UserError(message, "run it as the user of spotd, or with sudo") from None
    with lock:
        yield


def upgrade_database(config: Path | None, output: Output) -> None:
    """Upgrade the configured database to this program's schema and print the result.

    Raises UserError and StoreError.
    """
    url = load_config(config).database_url
    with exclusive_access(url):
        before, after = upgrade(url, SystemClock().now_us())
    data = {"apiVersion": "spotd/v1", "kind": "Upgrade", "before": before, "after": after}
    emit(data, output, lambda: print(f"the database is up to date: schema {after}"), "kind")
