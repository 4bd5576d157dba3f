"""Imports that broke off, remembered on the user's machine: which id each has, and what of it the
daemon has stored. The same import then goes on. What is not sent again is told by its digests, so
that a source that changed meanwhile is no danger."""

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
from spotd.base.errors import UnreachableError, UserError
from spotd.base.paths import imports_dir


class UnfinishedImport:
    """One import. `id`, `store` and `created_at_us` are those of its first attempt once it is
    `open`. `file` has a line for each thing remembered; None remembers nothing."""

    def __init__(self, client: Client, store: str, file: IO[bytes] | None) -> None:
        self.client, self.store = client, store
        self.id, self.created_at_us = "", 0
        self._file = file
        self._sent: dict[str, list[str]] = {}

    def open(self) -> None:
        """Find out how far it was, or begin. Raises UserError."""
        for line in self._lines():
            if "id" in line:
                self.id, self.store = line["id"], line["store"]
                self.created_at_us = line["created_at_us"]
            else:
                self._sent[line["key"]] = line["digests"]
        if not self.id:
            said = self.client.post("/v1/imports", {"store": self.store})
            self.id, self.store = said["id"], said["store"]
            self.created_at_us = time.time_ns() // 1000
            names = ("id", "store", "created_at_us")
            self._write({name: getattr(self, name) for name in names})

    def has(self, key: str, digests: Sequence[str]) -> bool:
        """Whether the daemon has stored exactly that."""
        return self._sent.get(key) == list(digests)

    def note(self, key: str, digests: Sequence[str]) -> None:
        """The daemon has stored it."""
        self._write({"key": key, "digests": list(digests)})

    def ask(self, request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """`request()`; an import of which something is refused never goes on. Raises UserError."""
        try:
            return request()
        except (UnreachableError, UnavailableError):
            raise
        except UserError:
            self.forget()
            raise

    def forget(self) -> None:
        """The next one begins anew."""
        if self._file is not None:
            self._file.truncate(0)

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.write(json.dumps(line).encode() + b"\n")
                self._file.flush()

    def _lines(self) -> Iterator[dict[str, Any]]:
        """A last one that was not written to its end counts as none."""
        if self._file is None:
            return
        self._file.seek(0)
        for line in self._file.read().splitlines():
            with suppress(ValueError):
                yield json.loads(line)
        self._file.write(b"\n")


@contextmanager
def begin(client: Client, store: str, source: Sequence[str]) -> Iterator[UnfinishedImport]:
    """The import of `source` into `store` ("" for the daemon's own); remembered until the block
    ends well. Raises UserError when another program is at it now."""
    name = hashlib.sha256(json.dumps([client.where, store, *source]).encode()).hexdigest()[:32]
    path = imports_dir() / f"{name}.jsonl"
    with _opened(path) as file:
        begun = UnfinishedImport(client, store, file)
        yield begun
        begun.forget()
        path.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | None]:
    """For this process alone; None where there is no room for it."""
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
            text = "another spotctl imports the same at the moment"
            raise UserError(text, "wait until it has ended") from None
        yield file
