"""Download of a checkpoint into a folder, which becomes a store with this checkpoint alone."""

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
from spotd.api_client.download import damage_error, fetch_checkpoint
from spotd.base.errors import UserError
from spotd.wire import Head, HeadRef, Manifest, Shard, head_key, sha256

OnProgress = Callable[[int, int], None]  # bytes that are stored, of how many


def pull_into(
    client: Client, listed: dict[str, Any], which: str, folder: Path, on_progress: OnProgress
) -> dict[str, Any]:
    """Download the checkpoint into `folder`.

    `listed` is the daemon's list of the job's checkpoints. Raises UserError if the download fails
    or does not match its digests; a second call resumes it.
    """
    job_id, root = listed["id"], folder.absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        item = next((item for item in listed["items"] if _is_requested(item, which)), None)
        first, digest = 0, ""
        if item is not None:  # by its step: the newest may soon be another one
            which, digest = str(item["step"]), item["digest"]
            first = _count_stored_shards(item, root, on_progress)
        with _FolderSink(root=root, job_id=job_id, on_progress=on_progress, first=first) as copy:
            fetch_checkpoint(
                sink=copy, client=client, job_id=job_id, which=which, first=first, expected=digest
            )
            return copy.finish()
    except DamagedError as error:
        raise damage_error(error) from None
    except (OSError, StoreError) as error:
        message = f"{folder} cannot be written: {error}"
        raise UserError(message, "name another folder with --into") from None


def _is_requested(item: dict[str, Any], which: str) -> bool:
    return which in (str(item["step"]), *item["pins"]) if which else bool(item["newest"])


def _count_stored_shards(item: dict[str, Any], root: Path, on_progress: OnProgress) -> int:
    """Return how many leading shards an earlier attempt has stored, each verified again."""
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
        on_progress(sum(s.size for s in manifest.shards[:count]), item["bytes"])
    return count


class _FolderSink:
    """Sink (spotd.api_client.download) that writes the files of a store.

    A file gets its name once all of it is verified, and HEAD is written last. The first `first`
    shards are stored already.
    """

    def __init__(self, root: Path, job_id: str, on_progress: OnProgress, first: int) -> None:
        self._store, self._root = LocalStore(root), root
        self._job_id = job_id
        self._on_progress = on_progress
        self._first = first
        self._ref: HeadRef | None = None
        self._manifest: Manifest | None = None
        self._done = self._total = 0
        self._path = root
        self._file: IO[bytes] | None = None

    def __enter__(self) -> _FolderSink:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def begin_checkpoint(self, ref: HeadRef, manifest: Manifest, data: bytes) -> None:
        self._ref, self._manifest, self._total = ref, manifest, manifest.size
        self._store.put(_job_key(self._job_id, ref.manifest), data)
        self._done = sum(shard.size for shard in manifest.shards[: self._first])

    def begin_shard(self, _number: int, shard: Shard) -> None:
        self._path = self._root / _job_key(self._job_id, shard.key)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.with_name(f"{self._path.name}.part").open("wb")

    def write(self, part: bytes) -> None:
        assert self._file is not None  # noqa: S101 - `begin_shard` opened it
        self._file.write(part)
        self._done += len(part)
        self._on_progress(self._done, self._total)

    def end_shard(self) -> None:
        assert self._file is not None  # noqa: S101 - `begin_shard` opened it
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        Path(self._file.name).replace(self._path)
        self._file = None

    def finish(self) -> dict[str, Any]:
        """Write HEAD, once every shard has arrived."""
        manifest, ref = self._manifest, self._ref
        assert manifest is not None  # noqa: S101 - the manifest arrives first
        assert ref is not None  # noqa: S101 - set with the manifest
        if manifest.stores:  # every shard is in this folder now
            data = manifest.gathered().to_bytes()
            self._store.put(_job_key(self._job_id, ref.manifest), data)
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


def _job_key(job_id: str, key: str) -> str:
    """Return `key` if it is below the job's folder. Raises DamagedError if it is not."""
    try:
        below_job = check_key(key).startswith(f"jobs/{job_id}/")
    except StoreConfigError as error:
        raise DamagedError(str(error)) from None
    if not below_job:
        raise DamagedError(f"{key} is not of job {job_id}")
    return key
