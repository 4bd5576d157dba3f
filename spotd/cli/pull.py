"""Download of a checkpoint, or of all files that a job left, into a folder.

A program's own files get their own names. A checkpoint of our engine makes the folder a store with
this checkpoint alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Self

from providers.stores.base import StoreConfigError, StoreError, check_key
from providers.stores.local import LocalStore
from spotd.act.checkpoints import DamagedError, ShardCheck, parse_manifest, verify_shard
from spotd.api_client.client import Client
from spotd.api_client.download import damage_error, fetch_checkpoint, fetch_outputs
from spotd.base.errors import ExitCode, UserError
from spotd.wire import (
    Head,
    HeadRef,
    Manifest,
    SavedFile,
    SavedFolder,
    SavedLink,
    Shard,
    WireError,
    head_key,
    parse_saved_folder,
    sha256,
    shards_of_unit,
    streams_by_path,
)

OnProgress = Callable[[int, int], None]  # bytes that are stored, of how many


def pull_into(
    *, client: Client, listed: dict[str, Any], which: str, folder: Path, on_progress: OnProgress
) -> dict[str, Any]:
    """Download the checkpoint into `folder`.

    `listed` is the daemon's list of the job's checkpoints. `which` is a step, a pin, or the name of
    one of the program's own checkpoints ("" is the newest). Raises UserError if the download fails
    or does not match its digests; a second call resumes it.
    """
    root = folder.absolute()
    with _download_errors(folder):
        item, unit = _find(listed, which)
        root.mkdir(parents=True, exist_ok=True)
        if item is not None and item["units"]:
            sink: _FilesSink | _FolderSink = _FilesSink(root, unit, on_progress)
        else:
            sink = _FolderSink(root=root, job_id=listed["id"], on_progress=on_progress)
        first = sink.resume(item) if item is not None else 0
        with sink:
            fetch_checkpoint(
                sink=sink,
                client=client,
                job_id=listed["id"],
                # By its step: the newest may soon be another one.
                which=which if item is None else str(item["step"]),
                first=first,
                expected="" if item is None else item["digest"],
                unit=unit,
            )
            return sink.finish()


def pull_outputs_into(
    *, client: Client, listed: dict[str, Any], folder: Path, on_progress: OnProgress
) -> dict[str, Any]:
    """Download the files that a job left into `folder`; `listed` is the daemon's list of them.

    Raises UserError if the download fails or does not match its digests; a second call resumes it.
    """
    root = folder.absolute()
    with _download_errors(folder):
        root.mkdir(parents=True, exist_ok=True)
        sink = _FilesSink(root, "", on_progress)
        first = sink.resume({**listed, "step": 0})
        with sink:
            fetch_outputs(
                sink=sink,
                client=client,
                job_id=listed["id"],
                first=first,
                expected=listed["digest"],
            )
            pulled = sink.finish()
    return {
        "apiVersion": pulled["apiVersion"],
        "kind": "OutputsPulled",
        "into": str(root),
        "bytes": pulled["bytes"],
        "files": len(listed["items"]),
        "entries": pulled["files"],
        "problems": listed["problems"],
    }


@contextmanager
def _download_errors(folder: Path) -> Iterator[None]:
    """Turn what may fail in a download into `folder` into UserErrors."""
    try:
        yield
    except DamagedError as error:
        raise damage_error(error) from None
    except (OSError, StoreError) as error:
        message = f"{folder} cannot be written: {error}"
        raise UserError(message, "name another folder with --into") from None


def _find(listed: dict[str, Any], which: str) -> tuple[dict[str, Any] | None, str]:
    """The item that is requested, and the unit in it, if `which` names one."""
    items = listed["items"]
    if (item := next((item for item in items if _is_requested(item, which)), None)) is not None:
        return item, ""
    name = which.rstrip("/")
    for item in items:
        if name and name in {unit["name"] for unit in item["units"]}:
            return item, name
    return None, ""


def _is_requested(item: dict[str, Any], which: str) -> bool:
    return which in (str(item["step"]), *item["pins"]) if which else bool(item["newest"])


class _FileWriter:
    """Writes shards into the file that `begin_shard` opened, and reports the progress."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._ref: HeadRef | None = None
        self._manifest: Manifest | None = None
        self._done = self._total = 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

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
        self._file = None


class _FilesSink(_FileWriter):
    """Sink (spotd.api_client.download) that writes a program's own files.

    What is under way is in a folder `.spotd-pull`, so that a second attempt finds it; a file gets
    its name and time once all of it is verified.
    """

    def __init__(self, root: Path, unit: str, on_progress: OnProgress) -> None:
        super().__init__(on_progress)
        self._root, self._unit = root, unit
        self._work = root / ".spotd-pull"
        self._saved: SavedFolder | None = None
        self._parts: list[tuple[SavedFile, int, int]] = []  # file, where in it, its size

    def resume(self, item: dict[str, Any]) -> int:
        """Return how many leading shards an earlier attempt has stored; verifies them again."""
        ref = HeadRef(item["generation"], item["step"], item["manifest"], item["digest"])
        try:
            manifest = parse_manifest((self._work / "MANIFEST.json").read_bytes(), ref)
            if json.loads((self._work / "pull.json").read_text())["unit"] != self._unit:
                return 0
        except (OSError, DamagedError, ValueError, KeyError):
            return 0
        count = 0
        for part, shard in zip(
            _parts(manifest, self._unit), shards_of_unit(manifest, self._unit), strict=True
        ):
            if not self._has(part, shard):
                break
            count += 1
            self._done += shard.size
        return count

    def _has(self, part: tuple[SavedFile, int, int], shard: Shard) -> bool:
        file, start, size = part
        paths = (self._root / file.path, self._work / "files" / file.path)
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            return False
        check = ShardCheck(shard)
        try:
            with path.open("rb") as stored:
                stored.seek(start)
                check.feed(stored.read(size))
            check.end()
        except DamagedError:
            return False
        return True

    def begin_checkpoint(self, ref: HeadRef, manifest: Manifest, data: bytes) -> None:
        try:
            saved = parse_saved_folder(manifest)
        except WireError as error:
            raise DamagedError(str(error)) from None
        if saved is None:
            raise DamagedError(f"step {ref.step} has no files of its program")
        self._ref, self._manifest, self._saved = ref, manifest, saved
        self._parts = list(_parts(manifest, self._unit))
        self._total = sum(size for _, _, size in self._parts)
        if not self._work.exists():
            self._refuse_to_overwrite()
        (self._work / "files").mkdir(parents=True, exist_ok=True)
        (self._work / "MANIFEST.json").write_bytes(data)
        (self._work / "pull.json").write_text(json.dumps({"unit": self._unit, **asdict(ref)}))

    def _refuse_to_overwrite(self) -> None:
        for entry in self._entries():
            if os.path.lexists(self._root / entry):
                message = f"{self._root / entry} is there already"
                raise UserError(message, "name a new folder with --into", ExitCode.USAGE)

    def _entries(self) -> list[str]:
        """The entries of the folder that the download makes."""
        assert self._saved is not None  # noqa: S101 - set with the manifest
        saved = self._saved
        wanted = [file.path for file in saved.files if self._unit in ("", file.unit)]
        wanted += [link.path for link in saved.links if self._wants_link(link)]
        wanted += [d.path for d in saved.directories if d.unit and self._unit in ("", d.unit)]
        return list(dict.fromkeys(path.split("/")[0] for path in wanted))

    def begin_shard(self, number: int, _shard: Shard) -> None:
        file, start, _ = self._parts[number]
        path = self._work / "files" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("r+b" if start else "wb")
        self._file.seek(start)

    def finish(self) -> dict[str, Any]:
        """Give the files their names, times and modes, once every shard has arrived."""
        manifest, saved, ref = self._manifest, self._saved, self._ref
        assert manifest is not None  # noqa: S101 - the manifest arrives first
        assert saved is not None  # noqa: S101 - set with the manifest
        assert ref is not None  # noqa: S101 - set with the manifest
        for file in saved.files:
            if self._unit in ("", file.unit):
                self._place(file, manifest)
        for link in saved.links:
            path = self._root / link.path
            if self._wants_link(link) and not os.path.lexists(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(link.target)
        for directory in saved.directories:
            if directory.unit and self._unit in ("", directory.unit):
                (self._root / directory.path).mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._work)
        self._set_times(saved)
        return _pulled(ref, self._total, files=self._entries(), outside=self._links_out(saved))

    def _wants_link(self, link: SavedLink) -> bool:
        """Whether to make the link. One out of the folder would lead to the user's own files."""
        return self._unit in ("", link.unit) and not link.leads_out

    def _links_out(self, saved: SavedFolder) -> list[str]:
        """The links that are not made, with what they point to."""
        links = (link for link in saved.links if link.leads_out)
        return [f"{link.path} -> {link.target}" for link in links if self._unit in ("", link.unit)]

    def _set_times(self, saved: SavedFolder) -> None:
        """Give the folders their times and modes, the innermost first."""
        for directory in sorted(saved.directories, key=lambda d: d.path, reverse=True):
            path = self._root / directory.path
            if path.is_dir() and not path.is_symlink():
                path.chmod(directory.mode | 0o700)
                os.utime(path, ns=(directory.modified_us * 1000, directory.modified_us * 1000))

    def _place(self, file: SavedFile, manifest: Manifest) -> None:
        assert self._saved is not None  # noqa: S101 - set with the manifest
        source, target = self._work / "files" / file.path, self._root / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._link_to_other(file, target):
            return
        if source.exists():
            source.replace(target)
        elif not streams_by_path(manifest, self._saved)[file.path].size:
            target.touch()
        target.chmod(file.mode | 0o600)
        os.utime(target, ns=(file.modified_us * 1000, file.modified_us * 1000))

    def _link_to_other(self, file: SavedFile, target: Path) -> bool:
        """Make the file a name of another one that is in place, as it was on the machine."""
        assert self._saved is not None  # noqa: S101 - set with the manifest
        assert self._manifest is not None  # noqa: S101 - the manifest arrives first
        streams, other = streams_by_path(self._manifest, self._saved), self._root / file.hard_link
        if not file.hard_link or not other.is_file() or os.path.lexists(target):
            return False
        if streams[file.hard_link] != streams[file.path]:
            return False
        if self._unit and self._unit not in {
            saved.unit for saved in self._saved.files if saved.path == file.hard_link
        }:
            return False
        with suppress(OSError):  # a file system without hard links
            os.link(other, target)
            return True
        return False


def _parts(manifest: Manifest, unit: str) -> Iterator[tuple[SavedFile, int, int]]:
    """Yield the file of each shard of the unit ("": of all), where in it, and the shard's size."""
    saved = parse_saved_folder(manifest)
    if saved is None:
        return
    for file, stream in zip(saved.files, manifest.streams, strict=True):
        start = 0
        for shard in stream.shards if unit in ("", file.unit) else ():
            yield file, start, shard.size
            start += shard.size


class _FolderSink(_FileWriter):
    """Sink (spotd.api_client.download) that writes the files of a store.

    A file gets its name once all of it is verified, and HEAD is written last.
    """

    def __init__(self, root: Path, job_id: str, on_progress: OnProgress) -> None:
        super().__init__(on_progress)
        self._store, self._root = LocalStore(root), root
        self._job_id = job_id
        self._first = 0  # shards that an earlier attempt has stored
        self._path = root

    def resume(self, item: dict[str, Any]) -> int:
        """Return how many leading shards an earlier attempt has stored; verifies them again."""
        ref = HeadRef(item["generation"], item["step"], item["manifest"], item["digest"])
        try:
            path = self._root / check_key(ref.manifest)
            manifest = parse_manifest(path.read_bytes(), ref)
        except (OSError, DamagedError, StoreConfigError):
            return 0
        for shard in manifest.gathered().shards:
            try:
                verify_shard(self._store, shard)
            except (DamagedError, StoreError):
                break
            self._first += 1
            done = sum(s.size for s in manifest.shards[: self._first])
            self._on_progress(done, item["bytes"])
        return self._first

    def begin_checkpoint(self, ref: HeadRef, manifest: Manifest, data: bytes) -> None:
        self._ref, self._manifest, self._total = ref, manifest, manifest.size
        self._store.put(_job_key(self._job_id, ref.manifest), data)
        self._done = sum(shard.size for shard in manifest.shards[: self._first])

    def begin_shard(self, _number: int, shard: Shard) -> None:
        self._path = self._root / _job_key(self._job_id, shard.key)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.with_name(f"{self._path.name}.part").open("wb")

    def end_shard(self) -> None:
        assert self._file is not None  # noqa: S101 - `begin_shard` opened it
        written = Path(self._file.name)
        super().end_shard()
        written.replace(self._path)

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
        return _pulled(ref, manifest.size, manifest=str(self._root / ref.manifest))


def _pulled(
    ref: HeadRef,
    size: int,
    *,
    files: Sequence[str] = (),
    manifest: str = "",
    outside: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what was pulled: the program's own files, or the manifest in a folder store."""
    return {
        "apiVersion": "spotd/v1",
        "kind": "CheckpointPulled",
        "step": ref.step,
        "generation": ref.generation,
        "bytes": size,
        "files": [*files],
        "links_left_out": [*outside],
        "manifest": manifest,
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
