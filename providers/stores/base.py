"""The object store interface: small, conditional, the same on a folder and in a bucket.

Used by the daemon and on the node. Checkpoint safety rests on `put_if` alone: a create-only or
compare-and-swap write that has exactly one winner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class StoreError(Exception):
    """Base of the errors below."""


class NotFoundError(StoreError):
    """No object under that key."""


class ConflictError(StoreError):
    """A conditional write lost: the object exists, or is not the version that was named."""


class StoreUnavailableError(StoreError):
    """It may have happened: time-out, 5xx, throttled. Try again, then read back."""


class StoreDeniedError(StoreError):
    """Credentials or bucket refused: trying again cannot help."""


class StoreConfigError(StoreError):
    """The URL, an option or a key is wrong; the text says which and what to write instead."""


# What is written: whole, of a file, or piece by piece as it comes.
Body = bytes | memoryview | Path | Iterator[bytes]

# Of the options of a store: what is not to be seen, and not for machines that are lent credentials.
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
    """The key itself, when every store can hold it. Raises StoreConfigError.

    Letters, digits and `._=+@,:-` in parts joined by `/`, 1,000 bytes at most: what a folder and a
    bucket both store unchanged. The part names `.` and `..` and a first part that starts with a
    dot (the local store's own corner) are refused.
    """
    parts = key.split("/")
    good = all(_PART.fullmatch(part) and part not in {".", ".."} for part in parts)
    if not good or key.startswith(".") or len(key) > 1000:
        raise StoreConfigError(
            f"key {key!r} cannot be stored: use letters, digits and ._=+@,:- in parts joined by /"
        )
    return key


@dataclass(frozen=True)
class ObjectInfo:
    """One listed object; `tag` is another one when it was written anew, "" where no list says."""

    key: str
    size: int
    tag: str = field(default="", compare=False)


class ObjectStore(Protocol):
    """Keys are relative paths with `/`; no key starts with `/` or contains `..`."""

    url: str

    def get(self, key: str) -> tuple[bytes, str]:
        """The whole object and its version tag. Raises NotFoundError."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` (fewer at the end of the object). Raises NotFoundError."""
        ...

    def put(self, key: str, data: Body) -> None:
        """Write under a key that no other writer uses; durable when it returns. Of pieces that end
        with an error nothing is there under that key, and the error is raised as it is."""
        ...

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        """Conditional write of a small object; returns the new version tag.

        `tag=None`: only if the key does not exist. Otherwise only if the object still has that
        version. Raises ConflictError when the condition fails, StoreUnavailableError when the
        outcome is unknown (the caller reads back and compares its nonce).
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in key order, without a page limit."""
        ...

    def delete(self, key: str) -> None:
        """Remove; a missing key is success."""
        ...
