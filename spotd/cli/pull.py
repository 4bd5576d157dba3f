"""A checkpoint that the daemon sends, kept as files of a store in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from providers.stores.base import StoreConfigError, StoreError, check_key
from providers.stores.local import LocalStore
from spotd.act.checkpoints import DamagedError, parse_manifest, verify_shard
from spotd.api_client.client import Client
from spotd.api_client.download import fetch_into, refused
from spotd.base.errors import UserError
from spotd.wire import Head, HeadRef, Manifest, Shard, head_key, sha256

Told = Callable[[int, int], None]  # bytes that are there, of how many


def pull_into(
    client: Client, listed: dict[str, Any], which: str, folder: Path, told: Told
) -> dict[str, Any]:
    """Have it all in `folder`. `listed` is what the daemon lists of the job. Raises UserError for
    what does not come, or not as it was saved; called again, it goes on."""
    job_id, root = listed["id"], folder.absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        item = next((item for item in listed["items"] if _is(item, which)), None)
        first, digest = 0, ""
        if item is not None:  # by its step: the newest may be another one in a moment
            which, digest = str(item["step"]), item["digest"]
            first = _there(item, root, told)
        with _Copy(root, job_id, told, first) as copy:
            fetch_into(copy, client, job_id, which, first, digest)
            return copy.finish()
    except DamagedError as error:
        raise refused(error) from None
    except (OSError, StoreError) as error:
        text = f"{folder} cannot be written: {error}"
        raise UserError(text, "name another folder with --into") from None


def _is(item: dict[str, Any], which: str) -> bool:
    return which in (str(item["step"]), *item["pins"]) if which else bool(item["newest"])


def _there(item: dict[str, Any], root: Path, told: Told) -> int:
    """How many shards are there from an earlier try, each verified anew."""
    ref = HeadRef(item["generation"], item["step"], item["manifest"], item["digest"])
    try:
        manifest = parse_manifest((root / check_key(ref.manifest)).read_bytes(), ref)
    except (OSError, DamagedError, StoreConfigError):
        return 0
    store, count = LocalStore(root), 0
    for shard in manifest.gathered().shards:
        try:
            verify_shard(store, shard)
        except (DamagedError, StoreError):
            break
        count += 1
        told(sum(s.size for s in manifest.shards[:count]), item["bytes"])
    return count


class _Copy:
    """A file has its name when all of it was verified, and HEAD comes last. So many as `first`
    shards are there."""

    def __init__(self, root: Path, job_id: str, told: Told, first: int) -> None:
        self._store, self._root, self._job_id, self._told = LocalStore(root), root, job_id, told
        self._first = first
        self._ref: HeadRef | None = None
        self._manifest: Manifest | None = None
        self._done = self._whole = 0
        self._path = root
        self._file: IO[bytes] | None = None

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def opened(self, ref: HeadRef, manifest: Manifest, data: bytes) -> None:
        self._ref, self._manifest, self._whole = ref, manifest, manifest.size
        self._store.put(_own(self._job_id, ref.manifest), data)
        self._done = sum(shard.size for shard in manifest.shards[: self._first])

    def begin(self, _number: int, shard: Shard) -> None:
        self._path = self._root / _own(self._job_id, shard.key)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.with_name(f"{self._path.name}.part").open("wb")

    def take(self, part: bytes) -> None:
        assert self._file is not None  # noqa: S101 - `begin` opened it
        self._file.write(part)
        self._done += len(part)
        self._told(self._done, self._whole)

    def end(self) -> None:
        assert self._file is not None  # noqa: S101 - the same
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        Path(self._file.name).replace(self._path)
        self._file = None

    def finish(self) -> dict[str, Any]:
        """All has come."""
        manifest, ref = self._manifest, self._ref
        assert manifest is not None  # noqa: S101 - it came first
        assert ref is not None  # noqa: S101 - with it
        if manifest.stores:  # all of it is here now
            data = manifest.gathered().to_bytes()
            self._store.put(_own(self._job_id, ref.manifest), data)
            ref = replace(ref, digest=sha256(data))
        head = Head(self._job_id, ref.generation, 1, "pulled", "", ref, released=True)
        data = replace(head, final=manifest.final).to_bytes()
        self._store.put(head_key(self._job_id), data)
        return {
            "apiVersion": "spotd/v1",
            "kind": "CheckpointPulled",
            "step": ref.step,
            "generation": ref.generation,
            "bytes": manifest.size,
            "manifest": str(self._root / ref.manifest),
        }


def _own(job_id: str, key: str) -> str:
    """A key below the job's folder. Raises DamagedError for any other."""
    try:
        good = check_key(key).startswith(f"jobs/{job_id}/")
    except StoreConfigError as error:
        raise DamagedError(str(error)) from None
    if not good:
        raise DamagedError(f"{key} is not of job {job_id}")
    return key
