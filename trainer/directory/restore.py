"""Restore the folder of a program from the newest save that can be read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from providers.stores.base import NotFoundError, ObjectStore
from spotd.wire import HeadRef, Manifest, SavedDirectory, SavedFolder
from trainer.directory import archive
from trainer.directory.archive import DownloadedFiles
from trainer.directory.stored_units import StoredUnit, stored_unit
from trainer.directory.units import Rules, find_units
from trainer.saver.reader import CorruptError

_NEW, _ASIDE = ".spotd-new", ".spotd-aside"  # inside the folder, so that moving files is a rename
_BEGAN = ".spotd-began"  # its age tells what the program wrote from what was there before

Save = tuple[HeadRef, Manifest, SavedFolder]


@dataclass(frozen=True)
class RestoredFolder:
    """The restored units; `ref` is the save that they are of, None if only parts of one were read.

    `directories` are those of that save.
    """

    units: Mapping[str, StoredUnit] = field(default_factory=dict)
    ref: HeadRef | None = None
    directories: tuple[SavedDirectory, ...] = ()


class Restorer:
    """Restores one folder from `store`. `skip(ref, error)` is called for what cannot be read."""

    def __init__(
        self,
        folder: Path,
        rules: Rules,
        store: ObjectStore,
        skip: Callable[[HeadRef, str], None],
    ) -> None:
        self._folder, self._rules, self._store, self._skip = folder, rules, store, skip
        self._new = folder / _NEW
        self._downloaded = DownloadedFiles()

    def restore(self, saves: Sequence[Save]) -> RestoredFolder:
        """Restore the newest of these saves whose newest unit can be read.

        Other units of it that cannot be read are replaced by older copies, or left out. What is in
        their place already, or was written by an earlier program and is not in the save, is moved
        aside. Raises StoreError, OSError; it may be called again after an error.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._discard_new()
        restored = self._download_newest(saves) or self._download_what_can_be_read(saves)
        return self._install(restored)

    def _discard_new(self) -> None:
        shutil.rmtree(self._new, ignore_errors=True)
        self._downloaded = DownloadedFiles()

    def _download_newest(self, saves: Sequence[Save]) -> RestoredFolder | None:
        for at, (ref, manifest, saved) in enumerate(saves):
            try:
                self._download(manifest, saved, saved.newest)
            except (CorruptError, NotFoundError) as error:  # noqa: PERF203 - few saves
                self._skip(ref, str(error))
            else:
                return RestoredFolder(self._download_others(saves[at:]), ref, saved.directories)
        return None

    def _download(self, manifest: Manifest, saved: SavedFolder, unit: str) -> None:
        """Download one unit; on an error nothing of it is left."""
        try:
            archive.download(
                store=self._store,
                manifest=manifest,
                saved=saved,
                units={unit},
                folder=self._new,
                downloaded=self._downloaded,
            )
        except (CorruptError, NotFoundError):
            _remove(self._new / unit)
            raise

    def _download_others(self, saves: Sequence[Save]) -> dict[str, StoredUnit]:
        """Download the rest of the first save; return all of its units."""
        _, manifest, saved = saves[0]
        units = {saved.newest: stored_unit(manifest, saved, saved.newest)}
        for name in saved.units:
            if name in units:
                continue
            for older_ref, older_manifest, older in saves:
                if name not in older.units:
                    continue
                try:
                    self._download(older_manifest, older, name)
                except (CorruptError, NotFoundError) as error:
                    self._skip(older_ref, f"{name}: {error}")
                else:
                    units[name] = stored_unit(older_manifest, older, name)
                    break
        return units

    def _download_what_can_be_read(self, saves: Sequence[Save]) -> RestoredFolder:
        """Download the units of the newest save that has an intact checkpoint."""
        for _, manifest, saved in saves:
            units: dict[str, StoredUnit] = {}
            for name in saved.units:
                try:
                    self._download(manifest, saved, name)
                except (CorruptError, NotFoundError):
                    continue
                units[name] = stored_unit(manifest, saved, name)
            if any(unit.number is not None for unit in units.values()):
                return RestoredFolder(units, None, saved.directories)
            self._discard_new()
        return RestoredFolder()

    def _install(self, restored: RestoredFolder) -> RestoredFolder:
        """Move downloaded units into the folder, and mark the moment."""
        began_ns = began_at_ns(self._folder)
        for unit in find_units(self._folder, self._rules):
            if 0 < began_ns < unit.changed_ns:
                self._move_aside(unit.name)
        for name in restored.units:
            if os.path.lexists(self._folder / name):
                self._move_aside(name)
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self._new / name).rename(self._folder / name)
        self._discard_new()
        set_directories(self._folder, restored)
        on_disk = {unit.name: unit for unit in find_units(self._folder, self._rules)}
        began = self._folder / _BEGAN
        began.unlink(missing_ok=True)
        began.touch()
        units = {
            name: replace(unit, unit=on_disk.get(name)) for name, unit in restored.units.items()
        }
        return replace(restored, units=units)

    def _move_aside(self, name: str) -> None:
        aside = self._folder / _ASIDE / name
        _remove(aside)
        aside.parent.mkdir(parents=True, exist_ok=True)
        (self._folder / name).rename(aside)


def set_directories(folder: Path, restored: RestoredFolder) -> None:
    """Give the directories of restored units the modes and times that they had.

    transformers goes by the times of its checkpoints' folders.
    """
    entries = {entry for unit in restored.units.values() for entry in unit.entries}
    for directory in sorted(restored.directories, key=lambda d: d.path, reverse=True):
        path, below = folder / directory.path, f"{directory.path}/"
        if directory.unit:
            if directory.unit not in restored.units:
                continue
        elif not any(entry.startswith(below) for entry in entries):
            continue
        if path.is_dir() and not path.is_symlink():
            path.chmod(directory.mode)
            modified_ns = directory.modified_us * 1000
            os.utime(path, ns=(modified_ns, modified_ns))


def began_at_ns(folder: Path) -> int:
    """When the program could begin to write to the folder; 0 if it never could."""
    try:
        return (folder / _BEGAN).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
