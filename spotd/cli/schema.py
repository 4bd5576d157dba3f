"""What `spotd db` and `spotctl db` do to a database that no daemon uses."""

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
def alone(url: str) -> Iterator[None]:
    """While no daemon has the file open, where it is one; who uses a server's, leases tell. Raises
    UserError."""
    file = file_of(url)
    held: AbstractContextManager[object] = nullcontext()
    try:
        if file is not None and file.exists():
            held = hold_database(file)
    except OSError as error:
        text = f"the database {file} cannot be used: {error.strerror}"
        raise UserError(text, "run it as the user of spotd, or with sudo") from None
    with held:
        yield


def upgrade_here(config: Path | None, output: Output) -> None:
    """Bring the database of this configuration to this program's schema, and say so. Raises
    UserError and StoreError."""
    url = load_config(config).database_url
    with alone(url):
        before, after = upgrade(url, SystemClock().now_us())
    data = {"apiVersion": "spotd/v1", "kind": "Upgrade", "before": before, "after": after}
    emit(data, output, lambda: print(f"the database is up to date: schema {after}"), "kind")
