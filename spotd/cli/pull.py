"""A checkpoint that the daemon sends as one run of bytes, kept as files of a store in a folder."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlencode

from providers.stores.base import StoreConfigError, StoreError, check_key
from providers.stores.local import LocalStore
from spotd.act.checkpoints import DamagedError, ShardCheck, parse_manifest, verify_shard
from spotd.cli.client import Client, job_path
from spotd.errors import UnreachableError, UserError
from spotd.wire import Head, HeadRef, Manifest, head_key

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
        query = urlencode({"name": which, "first": first})
        with _Taken(root, job_id, told, first, digest) as taken:
            path = f"{job_path(job_id, '/checkpoints/data')}?{query}"
            try:
                client.fetch(path, cast("IO[bytes]", taken))
            except UnreachableError:
                if not taken.begun:
                    raise
            return taken.finish()
    except DamagedError as error:
        text, advice = f"what came is not what was saved: {error}", "spotctl ckpt verify says more"
        raise UserError(text, advice) from None
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
    for shard in manifest.shards:
        try:
            verify_shard(store, shard)
        except (DamagedError, StoreError):
            break
        count += 1
        told(sum(s.size for s in manifest.shards[:count]), item["bytes"])
    return count


class _Taken(io.RawIOBase):
    """Takes the run of bytes: a line, the manifest, the shards. A file has its name when all of it
    was verified, and HEAD comes last."""

    def __init__(self, root: Path, job_id: str, told: Told, first: int, digest: str) -> None:
        super().__init__()
        self._store, self._root, self._job_id, self._told = LocalStore(root), root, job_id, told
        self._held = b""
        self._line: dict[str, Any] = {}
        self._ref: HeadRef | None = None
        self._manifest: Manifest | None = None
        # So many shards of that checkpoint do not come: they are there.
        self._number = self._first = first
        self._expected = digest
        self._left = self._done = 0
        self._file: IO[bytes] | None = None
        self._check: ShardCheck | None = None

    @property
    def begun(self) -> bool:
        """Something came."""
        return bool(self._line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = bytes(data)
        if self._manifest is None:
            self._held += view
            view = self._open()
        while view and self._manifest is not None:
            view = self._take(view)
        return len(data)

    def _open(self) -> bytes:
        """What is held beyond the manifest, once that is whole."""
        if not self._line:
            line, end, rest = self._held.partition(b"\n")
            if not end:
                return b""
            self._line, self._held = json.loads(line), rest
        wanted = int(self._line["bytes"])
        if len(self._held) < wanted:
            return b""
        names = ("generation", "step", "manifest", "digest")
        self._ref = ref = HeadRef(*(self._line[name] for name in names))
        if self._first and ref.digest != self._expected:
            raise DamagedError(f"step {ref.step} was saved anew meanwhile: run it again")
        data, rest = self._held[:wanted], self._held[wanted:]
        self._manifest = parse_manifest(data, ref)
        self._store.put(_own(self._job_id, ref.manifest), data)
        shards = self._manifest.shards
        self._done = sum(shard.size for shard in shards[: self._number])
        self._next()
        return rest

    def _next(self) -> None:
        """Empty shards have no bytes to come."""
        assert self._manifest is not None  # noqa: S101 - it came first
        shards = self._manifest.shards
        while self._number < len(shards):
            shard = shards[self._number]
            path = self._root / _own(self._job_id, shard.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.with_name(f"{path.name}.part").open("wb")
            self._check, self._left = ShardCheck(shard), shard.size
            if self._left:
                return
            self._close(path)

    def _take(self, view: bytes) -> bytes:
        if self._file is None or self._check is None or self._manifest is None:
            raise DamagedError("there is more than its manifest says")
        part, rest = view[: self._left], view[self._left :]
        self._check.feed(part)
        self._file.write(part)
        self._left -= len(part)
        self._done += len(part)
        self._told(self._done, sum(shard.size for shard in self._manifest.shards))
        if not self._left:
            self._close(self._root / self._manifest.shards[self._number].key)
            self._next()
        return rest

    def _close(self, path: Path) -> None:
        assert self._file is not None  # noqa: S101 - `_next` opened it
        assert self._check is not None  # noqa: S101 - the same
        self._check.end()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        Path(self._file.name).replace(path)
        self._file = None
        self._number += 1

    def finish(self) -> dict[str, Any]:
        """All has come, or UserError."""
        manifest, ref = self._manifest, self._ref
        if manifest is None or ref is None or self._number < len(manifest.shards):
            text = "the checkpoint broke off: the store may be away, or an object of it damaged"
            raise UserError(text, "run it again, it goes on; or: spotctl ckpt verify")
        whole = sum(shard.size for shard in manifest.shards)
        head = Head(self._job_id, ref.generation, 1, "pulled", "", ref, released=True)
        data = replace(head, final=manifest.final).to_bytes()
        self._store.put(head_key(self._job_id), data)
        return {
            "apiVersion": "spotd/v1",
            "kind": "CheckpointPulled",
            "step": ref.step,
            "generation": ref.generation,
            "bytes": whole,
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
