"""Restore the folder of a program from the newest save that can be read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from providers.stores.base import NotFoundError, ObjectStore
from spotd.wire import HeadRef, Manifest, SavedDirectory, SavedFolder
from trainer.directory import archive
from trainer.directory.archive import DownloadedFiles
from trainer.directory.stored_units import StoredUnit, stored_units
from trainer.directory.units import Rules, find_units, parents_of
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


@dataclass(frozen=True)
class _Parsed:
    """A save and its units."""

    ref: HeadRef
    manifest: Manifest
    saved: SavedFolder

    @cached_property
    def units(self) -> dict[str, StoredUnit]:
        return stored_units(self.manifest, self.saved)


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
        parsed = [_Parsed(*save) for save in saves]
        restored = self._download_newest(parsed) or self._download_what_can_be_read(parsed)
        return self._install(restored)

    def _discard_new(self) -> None:
        shutil.rmtree(self._new, ignore_errors=True)
        self._downloaded = DownloadedFiles()

    def _download_newest(self, saves: Sequence[_Parsed]) -> RestoredFolder | None:
        for at, save in enumerate(saves):
            try:
                self._download(save, save.saved.newest)
            except (CorruptError, NotFoundError) as error:  # noqa: PERF203 - few saves
                self._skip(save.ref, str(error))
            else:
                units = self._download_others(saves[at:])
                return RestoredFolder(units, save.ref, save.saved.directories)
        return None

    def _download(self, save: _Parsed, name: str) -> StoredUnit:
        """Download one unit; on an error nothing of it is left."""
        unit = save.units[name]
        try:
            archive.download(
                store=self._store,
                manifest=save.manifest,
                unit=unit,
                folder=self._new,
                downloaded=self._downloaded,
            )
        except (CorruptError, NotFoundError):
            _remove(self._new / name)
            raise
        return unit

    def _download_others(self, saves: Sequence[_Parsed]) -> dict[str, StoredUnit]:
        """Download the rest of the first save; return all of its units."""
        newest = saves[0].saved.newest
        units = {newest: saves[0].units[newest]}
        for name in saves[0].units:
            if name in units:
                continue
            for older in saves:
                if name not in older.units:
                    continue
                try:
                    units[name] = self._download(older, name)
                except (CorruptError, NotFoundError) as error:
                    self._skip(older.ref, f"{name}: {error}")
                else:
                    break
        return units

    def _download_what_can_be_read(self, saves: Sequence[_Parsed]) -> RestoredFolder:
        """Download the units of the newest save that has an intact checkpoint."""
        for save in saves:
            units: dict[str, StoredUnit] = {}
            for name in save.units:
                with suppress(CorruptError, NotFoundError):
                    units[name] = self._download(save, name)
            if any(unit.number is not None for unit in units.values()):
                return RestoredFolder(units, None, save.saved.directories)
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
    entries = (entry for unit in restored.units.values() for entry in unit.entries)
    not_empty = {parent for entry in entries for parent in parents_of(entry)}
    for directory in sorted(restored.directories, key=lambda d: d.path, reverse=True):
        path = folder / directory.path
        if directory.unit not in restored.units and directory.path not in not_empty:
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
