"""Checkpoint imports that can be resumed after an interruption.

A file on the user's machine records each import's id and the shards that the daemon has stored.
Shards are compared by digest, so a source that changed in between is uploaded again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from spotd.api_client.client import Client, UnavailableError
from spotd.api_routes import routes
from spotd.base.errors import UnreachableError, UserError
from spotd.base.paths import imports_dir


class ResumableImport:
    """One import. `open` sets `id`, `store` and `created_at_us` to those of its first attempt.

    `file` has one JSON line for each recorded fact; with None nothing is recorded.
    """

    def __init__(self, client: Client, store: str, file: IO[bytes] | None) -> None:
        self.client, self.store = client, store
        self.id, self.created_at_us = "", 0
        self._file = file
        self._sent: dict[str, list[str]] = {}

    def open(self) -> None:
        """Read the progress of an earlier attempt, or start a new import. Raises UserError."""
        for line in self._lines():
            if "id" in line:
                self.id, self.store = line["id"], line["store"]
                self.created_at_us = line["created_at_us"]
            else:
                self._sent[line["key"]] = line["digests"]
        if not self.id:
            reply = self.client.call(routes.BEGIN_IMPORT(), {"store": self.store})
            self.id, self.store = reply["id"], reply["store"]
            self.created_at_us = time.time_ns() // 1000
            names = ("id", "store", "created_at_us")
            self._write({name: getattr(self, name) for name in names})

    def is_stored(self, key: str, digests: Sequence[str]) -> bool:
        """Return whether the daemon has stored exactly these bytes as `key`."""
        return self._sent.get(key) == list(digests)

    def mark_stored(self, key: str, digests: Sequence[str]) -> None:
        """Record that the daemon has stored these bytes as `key`."""
        self._write({"key": key, "digests": list(digests)})

    def send(self, request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call `request()`; an import that the daemon rejects is never resumed.

        Raises UserError.
        """
        try:
            return request()
        except (UnreachableError, UnavailableError):
            raise
        except UserError:
            self.discard()
            raise

    def discard(self) -> None:
        """Drop the record, so that the next attempt starts anew."""
        if self._file is not None:
            self._file.truncate(0)

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.write(json.dumps(line).encode() + b"\n")
                self._file.flush()

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield the recorded lines; a last line that was cut off is skipped."""
        if self._file is None:
            return
        self._file.seek(0)
        for line in self._file.read().splitlines():
            with suppress(ValueError):
                yield json.loads(line)
        self._file.write(b"\n")


@contextmanager
def open_import(client: Client, store: str, source: Sequence[str]) -> Iterator[ResumableImport]:
    """Yield the import of `source` into `store` ("" for the daemon's default store).

    The record is deleted when the block ends without an error. Raises UserError when another
    process runs the same import.
    """
    name = hashlib.sha256(json.dumps([client.address, store, *source]).encode()).hexdigest()[:32]
    path = imports_dir() / f"{name}.jsonl"
    with _locked_record(path) as file:
        session = ResumableImport(client, store, file)
        yield session
        session.discard()
        path.unlink(missing_ok=True)


@contextmanager
def _locked_record(path: Path) -> Iterator[IO[bytes] | None]:
    """Yield the record, locked for this process; None where it cannot be opened."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b")
    except OSError:
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = "another spotctl is importing the same checkpoint"
            raise UserError(message, "wait until it ends") from None
        yield file
