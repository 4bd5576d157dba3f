"""The route that sends a copy of the database."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from spotd.api.request.request import ApiRequest

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class BackupFile:
    """An open copy of the database without a file name: closing it, or any crash, removes it."""

    file: IO[bytes]
    headers: Mapping[str, str]

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes, once; the file stays open."""
        while chunk := self.file.read(CHUNK_BYTES):
            yield chunk


def copy_database(call: ApiRequest) -> BackupFile:
    """Make a copy. Raises StoreError."""
    context = call.context
    context.storage.spool_dir.mkdir(parents=True, exist_ok=True)
    path = context.storage.spool_dir / f"backup-{context.ids.token()}"
    context.storage.back_up(path, call.now_us)
    try:
        file = path.open("rb")
    finally:
        path.unlink()
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = file.tell()
    file.seek(0)
    return BackupFile(file, {"Content-Length": str(size), "X-Spotd-Sha256": digest})
