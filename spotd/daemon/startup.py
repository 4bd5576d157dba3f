"""Check the preconditions of a daemon and open its folders and stores."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path
from typing import IO

import structlog

from providers.stores import open_store
from providers.stores.base import ObjectStore
from providers.stores.base import StoreError as ObjectStoreError
from spotd import wire
from spotd.base.clock import SystemClock
from spotd.base.errors import ExitCode, UserError
from spotd.base.lock import hold
from spotd.config.config import Config
from spotd.domain.units import S
from spotd.store.interface import Store

log = structlog.get_logger(__name__)

MACHINE_ID = Path("/etc/machine-id")  # man machine-id: another one on every installation
MOVED = (
    "this database was moved or copied here: if a spotd still uses the other one, stop one of the "
    "two for good"
)


def make_folder(path: Path) -> Path:
    """Create the state folder, readable by its owner alone. Raises UserError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, error) from None
    return path


def empty_folder(path: Path) -> Path:
    """Create an empty folder: remove uploads and database copies of a daemon that was killed."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def _unusable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"the state folder {path} cannot be used: {error.strerror}",
        "let the user that runs spotd write there, or set another `state_dir` in config.toml",
    )


def open_deployment_store(config: Config) -> ObjectStore:
    """Open the deployment's object store. Raises UserError."""
    url = config.deployment_store
    try:
        return open_store(url, config.store_options(url))
    except ObjectStoreError as error:
        text = f"deployment.store cannot be used: {error}"
        raise UserError(text, "correct it in config.toml", ExitCode.USAGE) from None


def open_claim_store(config: Config, own: ObjectStore) -> ObjectStore:
    """Return the store that holds the deployment's claim, which a database copy shares.

    It is the deployment's store, `own`. If that is a folder, which may be copied along with the
    database, it is the checkpoint store, if that is a bucket.
    """
    url = config.checkpoint_defaults.store
    if not _is_folder(config, config.deployment_store) or not url or _is_folder(config, url):
        return own
    try:
        return open_store(url, config.store_options(url))
    except (ObjectStoreError, UserError) as error:
        # As one that does not answer: it proves nothing, and stops nobody.
        log.warning("the claim stays in the deployment's store", url=url, error=str(error))
        return own


def _is_folder(config: Config, url: str) -> bool:
    """Return whether the store is a folder of this machine alone."""
    return url.startswith("file://") and not config.store_access(url).shared


def hold_folder(folder: Path) -> IO[bytes]:
    """Lock the state folder for one daemon. Raises UserError if another one holds it."""
    text, fix = (
        f"another spotd runs on {folder}",
        "stop it first, or give this one its own state_dir",
    )
    try:
        return hold(folder / "lock", text, fix)
    except OSError as error:
        raise _unusable(folder, error) from None


def check_deployment(store: Store, config: Config) -> None:
    """Refuse a configured deployment id that differs from the database's. Raises UserError."""
    wanted, actual = config.file.deployment.id, store.deployment.id()
    if wanted not in (None, actual):
        raise UserError(
            f"deployment.id says {wanted}, and the database is that of deployment {actual}",
            "take deployment.id out of config.toml: it is for a database that is yet to be made",
            ExitCode.USAGE,
        )


def detect_moved_database(store: Store, file: Path, now_us: int) -> None:
    """Put a SQLite database that was moved or copied into quarantine, with an alert.

    The original may still be in use, and the two cannot be distinguished, so neither may terminate
    the other's machines. A copy of the machine's whole disk is not detected. Raises StoreError.
    """
    with contextlib.suppress(OSError):
        store.deployment.record_home(_home_of(file), MOVED, now_us)


def _home_of(file: Path) -> int:
    """Return a number that identifies this file on this machine. Raises OSError."""
    machine = MACHINE_ID.read_bytes() if MACHINE_ID.is_file() else b""
    place = machine.strip() + b" %d" % file.stat().st_ino
    return int.from_bytes(hashlib.sha256(place).digest()[:7], "big") + 1


def check_agents(store: Store) -> None:
    """Refuse to start if running agents speak an incompatible wire version. Raises UserError.

    The agents are not affected then; their training continues.
    """
    ours = wire.SPOKEN
    far = [node for node in store.nodes.active() if node.agent.wire and node.agent.wire not in ours]
    if far:
        ids = ", ".join(f"{node.id} (version {node.agent.wire})" for node in far)
        raise UserError(
            f"agents run that speak another wire than this spotd (version {wire.WIRE_VERSION}, "
            f"with agents of {ours[0]} to {ours[-1]}): {ids}",
            "install the spotd that started them, or one between, until these machines are gone; "
            "their training continues meanwhile",
        )


def advance_clock(clock: SystemClock, newest_us: int) -> None:
    """Move the daemon's clock to the newest record.

    Otherwise leases, timers and calls of a daemon whose clock was ahead would block this one until
    then.
    """
    behind_s = clock.not_before(newest_us + 1) / S
    if behind_s > 1:
        log.warning(
            "this machine's clock is behind the records: spotd continues from their time; check "
            "`timedatectl` if the clock is wrong",
            seconds=round(behind_s, 1),
        )
