"""Merge a job's uploads of outputs, and its program's own checkpoints, into one folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from providers.stores.base import NotFoundError, ObjectStore
from spotd import wire
from spotd.act.checkpoints import DamagedError, read_manifest
from spotd.store.outputs import StoredOutput
from spotd.wire import HeadRef, Manifest, SavedDirectory, SavedFile, SavedFolder, SavedLink, Stream


@dataclass(frozen=True)
class OutputFolder:
    """The newest version of each file that a job left, as one manifest.

    The manifest is in no store; its shards are. `problems` names uploads that cannot be read.
    """

    manifest: Manifest
    saved: SavedFolder
    problems: tuple[str, ...] = ()


@dataclass
class _Merged:
    """Files, links and empty directories by path; a path that is taken is not replaced."""

    files: dict[str, tuple[SavedFile, Stream]] = field(default_factory=dict)
    links: dict[str, SavedLink] = field(default_factory=dict)
    directories: dict[str, SavedDirectory] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    newest_us: int = 0

    def add(self, manifest: Manifest, saved: SavedFolder, prefix: str) -> None:
        self.newest_us = max(self.newest_us, manifest.created_at_us)
        for file, stream in zip(saved.files, manifest.streams, strict=True):
            path = f"{prefix}{file.path}"
            if self._takes(path):
                named = replace(file, path=path, unit=f"{prefix}{file.unit}", hard_link="")
                self.files[path] = named, stream
        for link in saved.links:
            path = f"{prefix}{link.path}"
            if self._takes(path):
                self.links[path] = replace(link, path=path, unit=f"{prefix}{link.unit}")
        for directory in saved.directories:
            path = f"{prefix}{directory.path}"
            if directory.unit and self._takes(path):
                unit = f"{prefix}{directory.unit}"
                self.directories[path] = replace(directory, path=path, unit=unit)

    def _takes(self, path: str) -> bool:
        parents = set(_parents(path))
        taken = self.files.keys() | self.links.keys() | self.directories.keys()
        if path in taken or path in self.folders or not taken.isdisjoint(parents):
            return False
        self.folders |= parents
        return True


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def merge_outputs(
    objects: ObjectStore,
    job_id: str,
    uploads: Sequence[StoredOutput],
    *,
    checkpoint: Manifest | None = None,
    folder: str = "",
) -> OutputFolder:
    """Merge the uploads, oldest first, so that the newest version of each file counts.

    Files of rank N > 0 are below `node-N/`. The files of `checkpoint`, a save of the program's
    `folder`, are below the name of that folder. Raises store errors.
    """
    merged, problems = _Merged(), []
    for upload in reversed(uploads):
        try:
            manifest, saved = _read_upload(objects, job_id, upload)
        except (DamagedError, NotFoundError, wire.WireError) as error:
            problems.append(f"an upload of generation {upload.generation} is damaged: {error}")
            continue
        merged.add(manifest, saved, f"node-{upload.rank}/" if upload.rank else "")
    if checkpoint is not None and (program := wire.parse_saved_folder(checkpoint)) is not None:
        parts = [part for part in folder.split("/") if part not in ("", ".", "~")]
        merged.add(checkpoint, program, "/".join([*parts, ""]))
    paths = sorted(merged.files)
    saved = SavedFolder(
        newest="",
        number=None,
        files=tuple(merged.files[path][0] for path in paths),
        links=tuple(merged.links[path] for path in sorted(merged.links)),
        directories=tuple(merged.directories[path] for path in sorted(merged.directories)),
    )
    manifest = Manifest(
        job=job_id,
        generation=max((upload.generation for upload in uploads), default=0),
        step=0,
        created_at_us=merged.newest_us,
        world_size=1,
        streams=tuple(merged.files[path][1] for path in paths),
        state=saved.to_state(),
    )
    return OutputFolder(manifest, saved, tuple(problems))


def _read_upload(
    objects: ObjectStore, job_id: str, upload: StoredOutput
) -> tuple[Manifest, SavedFolder]:
    """Raises DamagedError, NotFoundError, WireError and other store errors."""
    keys = rf"{re.escape(wire.outputs_folder(job_id))}g\d{{8}}-r\d{{5}}-[0-9a-f]+/[A-Za-z0-9.-]+"
    if not re.fullmatch(keys, upload.manifest):
        raise DamagedError(f"{upload.manifest!r} is not in the folder of the job's outputs")
    ref = HeadRef(upload.generation, 0, upload.manifest, upload.digest)
    manifest = read_manifest(objects, ref)
    for shard in manifest.shards:
        if not re.fullmatch(keys, shard.key) or shard.store:
            raise DamagedError(f"{shard.key!r} is not in the folder of the job's outputs")
    saved = wire.parse_saved_folder(manifest)
    if saved is None:
        raise DamagedError("its manifest names no files")
    return manifest, saved
