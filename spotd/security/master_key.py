"""The master key: where it is found, and what the database knows of it.

The key itself never lies in the database. While another key takes over, both are available under
their two names, and the database says which one is in force.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spotd.base.errors import UserError

# Names of systemd credentials, and of files in the state folder.
KEY_NAME = "spotd-key"
NEXT_KEY_NAME = "spotd-key-next"
KEY_BYTES = 32
KEY_ADVICE = (
    f"start with the {KEY_NAME} that belongs to this database (the systemd credential, or the file "
    "of the state folder it was made with); if that is lost for good, give spotd a new database"
)

RandomBytes = Callable[[int], bytes]


class MasterKeyError(UserError):
    """No usable master key, or a sealed value that this key does not open."""


@dataclass(frozen=True)
class KeyState:
    """The identity of the master key in force.

    `check` is a sealed value that only this key opens (None before the first start); `epoch` grows
    each time another key takes over.
    """

    check: bytes | None
    epoch: int


@dataclass(frozen=True)
class SealedValue:
    """A ciphertext and its owner.

    A secret of a job; without `name` the keys of a job; without `job_id` a secret of the
    deployment.
    """

    job_id: str
    name: str
    value: bytes


def load_key(state_dir: Path, environ: Mapping[str, str], random_bytes: RandomBytes) -> bytes:
    """The master key of a deployment that never had one: made in the state folder when there is
    neither that file nor a credential. Raises VaultError."""
    key = find_key(KEY_NAME, state_dir, environ)
    if key is None:
        path = state_dir / KEY_NAME
        _create_key(path, random_bytes(KEY_BYTES))
        key = _read_key(path, private=True)
    return key


def find_key(name: str, state_dir: Path, environ: Mapping[str, str]) -> bytes | None:
    """The key of that name: systemd's credential if there is one, else the state folder's file,
    else None. Raises VaultError."""
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    if folder and (credential := Path(folder) / name).exists():
        return _read_key(credential)  # systemd itself keeps this folder private
    path = state_dir / name
    return _read_key(path, private=True) if path.exists() else None


def missing_key(state_dir: Path) -> MasterKeyError:
    """Return the error to raise if there is no key."""
    return MasterKeyError(
        f"the master key of the database is missing: there is no {state_dir / KEY_NAME}, "
        f"and no systemd credential {KEY_NAME}",
        KEY_ADVICE,
    )


def missing_next_key(state_dir: Path) -> MasterKeyError:
    """Return the error to raise if there is no key to take over."""
    return MasterKeyError(
        f"there is no key to take over: no {state_dir / NEXT_KEY_NAME}, "
        f"and no systemd credential {NEXT_KEY_NAME}",
        "make one with `(umask 077; openssl rand -hex 32 > FILE)` and give it to every spotd of "
        f"this database, as that file or with LoadCredential={NEXT_KEY_NAME}:FILE and a restart",
    )


def _create_key(path: Path, key: bytes) -> None:
    """Complete or not at all, and never over another one: written aside, then linked."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(descriptor)
        try:
            path.hardlink_to(aside)
        except FileExistsError:
            return  # another process was first; its key counts
        finally:
            aside.unlink()
        _sync_folder(path.parent)
    except OSError as error:
        raise MasterKeyError(
            f"cannot create the master key {path}: {error.strerror}",
            "make the state folder writable for spotd, or hand the key in with "
            f"LoadCredential={KEY_NAME}:/path",
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_key(path: Path, *, private: bool = False) -> bytes:
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except OSError as error:
        raise MasterKeyError(
            f"cannot read the master key {path}: {error.strerror}",
            f"let the user that runs spotd read {path}",
        ) from error
    if private and mode & 0o077:
        raise MasterKeyError(
            f"the master key {path} can be read by others (mode {mode & 0o777:04o})",
            f"chmod 600 {path}",
        )
    if len(data) == KEY_BYTES:
        return data
    try:
        key = bytes.fromhex(data.decode("ascii").strip())
    except (UnicodeDecodeError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise MasterKeyError(
            f"{path} holds no master key: it must be 32 bytes, or 64 hex digits",
            "restore it from a backup; for a new deployment: "
            f"(umask 077; openssl rand -hex 32 > {path})",
        )
    return key
