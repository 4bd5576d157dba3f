"""The index of a cache in the store, and the keys of its objects.

The contents of all files are concatenated and cut into parts, each an object named by its SHA-256.
The index lists the files and which bytes of which parts they consist of.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spotd.wire import WireError, encode, read_count, read_field, read_list, shown
from trainer.caches.tree import File, stays_inside

PART_BYTES = 32 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Part:
    """An object in the store, named by its SHA-256. `size` in bytes."""

    digest: str
    size: int


@dataclass(frozen=True)
class Piece:
    """Bytes of a file: `size` bytes from offset `at` of the index's part number `part`."""

    part: int
    at: int
    size: int


@dataclass(frozen=True)
class CachedFile:
    """A file and the pieces it consists of, in order."""

    file: File
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Index:
    """The index of the cache that the job names `path`."""

    path: str
    parts: tuple[Part, ...]
    files: tuple[CachedFile, ...]

    def to_bytes(self) -> bytes:
        return encode(asdict(self))


def index_key(job_id: str, path: str) -> str:
    """Key of a cache's index."""
    return f"jobs/{job_id}/cache/index-{hashlib.sha256(path.encode()).hexdigest()[:32]}"


def part_key(job_id: str, part: Part) -> str:
    """Key of a part."""
    return f"jobs/{job_id}/cache/{part.digest}"


def parse_index(data: bytes) -> Index:
    """Parse and validate an index. Raises WireError, also for a path outside the cache folder."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise WireError("the index of a cache is not JSON") from None
    if not isinstance(body, dict):
        raise WireError("the index of a cache is not an object")
    parts = tuple(
        Part(read_field(item, "digest", str), read_count(item, "size"))
        for item in read_list(body, "parts", dict)
    )
    for part in parts:
        if not _DIGEST.fullmatch(part.digest) or not 0 < part.size <= PART_BYTES:
            raise WireError(f"{shown(part.digest)} is not part of a cache")
    files = tuple(_parse_file(item, parts) for item in read_list(body, "files", dict))
    if len({cached.file.path for cached in files}) != len(files):
        raise WireError("a file is named twice in the index of a cache")
    return Index(read_field(body, "path", str), parts, files)


def _parse_file(item: Mapping[str, Any], parts: tuple[Part, ...]) -> CachedFile:
    body = read_field(item, "file", dict)
    size, mtime_us, mode = (read_count(body, name) for name in ("size", "mtime_us", "mode"))
    path, link = read_field(body, "path", str), read_field(body, "link", str)
    file = File(path, size, mtime_us, mode & 0o777, link)
    names = file.path.split("/")
    invalid = any(name in {"", ".", ".."} for name in names) or not file.path.isprintable()
    if invalid or (file.link and not stays_inside(file.path, file.link)):
        raise WireError(f"{shown(file.path)} is not a file in a cache")
    pieces = tuple(
        Piece(*(read_count(piece, name) for name in ("part", "at", "size")))
        for piece in read_list(item, "pieces", dict)
    )
    for piece in pieces:
        if piece.part >= len(parts) or piece.at + piece.size > parts[piece.part].size:
            raise WireError(f"{shown(file.path)} has bytes where there are none")
    if sum(piece.size for piece in pieces) != file.size:
        raise WireError(f"{shown(file.path)} is of another size than its pieces")
    return CachedFile(file, pieces)
