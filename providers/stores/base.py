"""The object store interface, the same for a local folder and for a cloud bucket.

The daemon and the node both use it. Checkpoint safety depends on `put_if` alone: a create-only or
compare-and-swap write that exactly one writer wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class StoreError(Exception):
    """Base class of all store errors."""


class NotFoundError(StoreError):
    """There is no object with this key."""


class ConflictError(StoreError):
    """A conditional write failed: the object exists already, or has another version."""


class StoreUnavailableError(StoreError):
    """The outcome is unknown (timeout, 5xx, throttling): retry, then read back."""


class StoreDeniedError(StoreError):
    """Credentials or bucket were refused; a retry cannot succeed."""


class StoreConfigError(StoreError):
    """The URL, an option or a key is invalid; the message says which and how to fix it."""


# Data to write: in memory, a file, or an iterator of chunks.
Body = bytes | memoryview | Path | Iterator[bytes]

# Store options that are secret. Machines that get temporary credentials never receive them.
SECRET_OPTIONS = (
    "access_key_id",
    "secret_access_key",
    "session_token",
    "service_account_key",
    "account_key",
    "sas_token",
)
_PART = re.compile(r"[A-Za-z0-9._=+@,:-]{1,255}")


def check_key(key: str) -> str:
    """Return `key` unchanged if every store can hold it. Raises StoreConfigError.

    Allowed are letters, digits and `._=+@,:-` in parts joined by `/`, at most 1,000 bytes: folders
    and buckets both store such keys unchanged. The parts `.` and `..` and a first part that starts
    with a dot (the local store keeps its internal files there) are refused.
    """
    parts = key.split("/")
    valid = all(_PART.fullmatch(part) and part not in {".", ".."} for part in parts)
    if not valid or key.startswith(".") or len(key) > 1000:
        raise StoreConfigError(
            f"key {key!r} cannot be stored: use letters, digits and ._=+@,:- in parts joined by /"
        )
    return key


@dataclass(frozen=True)
class ObjectInfo:
    """A listed object. `tag` changes with every write; "" where listings do not include one.

    `modified_us` is the time of the last write by the store's clock; 0 if it is unknown.
    """

    key: str
    size: int
    tag: str = field(default="", compare=False)
    modified_us: int = field(default=0, compare=False)


class ObjectStore(Protocol):
    """An object store. Keys are relative paths; see `check_key`."""

    url: str

    def get(self, key: str) -> tuple[bytes, str]:
        """Return the object's bytes and its version tag. Raises NotFoundError."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read `length` bytes from `start`, fewer at the object's end. Raises NotFoundError."""
        ...

    def put(self, key: str, data: Body) -> None:
        """Write under a key that no other writer uses; durable on return.

        If iterating over `data` raises, nothing is stored and that exception propagates.
        """
        ...

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        """Write a small object conditionally; return its new version tag.

        With `tag=None` write only if the key does not exist, otherwise only if the object still has
        that version. Raises ConflictError if the condition fails, and StoreUnavailableError if the
        outcome is unknown: then read back and compare the nonce in the data.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with `prefix`, in key order, over all pages."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object. A missing key is not an error."""
        ...
