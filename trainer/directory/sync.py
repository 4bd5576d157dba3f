"""Save the folder that an unmodified program writes its checkpoints to, and restore it.

Each save describes the whole folder, and uploads what is new in it. It is committed through the
same fence as our engine's checkpoints. Failed saves are reported and retried, and never end
training.

A save is a consistent cut: it has no change whose predecessors in time it lacks, so a file such as
`latest` is never newer than the checkpoint that it names. Whatever is still being written stays in
the save as it was last stored.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from providers.stores.base import NotFoundError, ObjectStore, StoreUnavailableError
from spotd.wire import (
    CHECKPOINT,
    CHECKPOINT_FAILED,
    CHECKPOINT_SKIPPED,
    Head,
    HeadRef,
    Manifest,
    SavedFile,
    SavedFolder,
    SavedLink,
    Stream,
    WireError,
    manifest_key,
    parse_saved_folder,
)
from trainer.directory import archive
from trainer.directory.archive import ChangedError
from trainer.directory.resume_check import ResumeCheck
from trainer.directory.stored_units import (
    Identity,
    StoredUnit,
    content_of,
    highest_numbers,
    identity_of,
    newest_of,
    stored_unit,
    unchanged_since,
)
from trainer.directory.units import (
    ALL_FILES,
    QUIET_S,
    File,
    Rules,
    SettleTimer,
    Unit,
    UnitState,
    files_open_for_writing,
    find_units,
    inspect_unit,
    is_ready,
    looks_like_checkpoint,
    series_name,
)
from trainer.fence import Fence, FencedError, StaleCommitError
from trainer.saver.reader import CorruptError, read_manifest
from trainer.saver.retention import ReadBack, remove_old
from trainer.saver.shard_store_choice import ShardStoreChooser

POLL_S = 1.0
OPEN_WITHIN_S = 60.0  # for the program to open what was restored, before it is reported
SCAN_SHARE = 20  # between two looks pass at least this many times what the last one took
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 30.0
MAX_FILES = 50_000  # in one save
_NEW, _ASIDE = ".spotd-new", ".spotd-aside"  # inside the folder, so that moving files is a rename
_BEGAN = ".spotd-began"  # its age tells what the program wrote from what was there before

Report = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class DirectorySettings:
    """The watched folder, and what is saved of it.

    The newest `keep` saves stay in the store, and one of each `keep_every_steps` (0: none).
    """

    folder: Path
    keep: int
    keep_every_steps: int = 0
    rules: Rules = ALL_FILES
    open_within_s: float = OPEN_WITHIN_S


class DirectorySync:
    """Synchronizes one job's checkpoint folder with its store.

    Call `restore` before the program starts, `run` in a thread of its own, and `finish` after the
    program has ended. `report(kind, data)` adds a journal entry and must not block. `pause` may
    raise to end `run`.
    """

    def __init__(
        self,
        settings: DirectorySettings,
        get_fence: Callable[[], Fence],
        report: Report,
        *,
        pause: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._folder, self._rules, self._get_fence = settings.folder, settings.rules, get_fence
        self._keep, self._keep_every_steps = settings.keep, settings.keep_every_steps
        self._report, self._pause, self._monotonic = report, pause, monotonic
        self._now_us = now_us
        self._target = ShardStoreChooser(lambda: get_fence().store, self._report_failure, monotonic)
        self._lock = threading.Lock()
        self._closed = self._recalled = False
        self._ending = threading.Event()
        self._settle_timer = SettleTimer(monotonic)
        self._stored: dict[str, StoredUnit] = {}
        self._restored_numbers: dict[str, int] = {}  # by series, until the program is beyond
        self._behind: set[str] = set()  # series in which the program wrote a lower number
        self._open_at_last_look: set[str] = set()
        self._resume_check = ResumeCheck(self._folder, settings.open_within_s, report, monotonic)
        self._read_back = ReadBack()
        self._scan_s = 0.0  # how long it took to look through the folder
        self._failures, self._retry_at_s = 0, 0.0

    # --- before the program starts

    def restore(self, head: Head) -> None:
        """Restore the folder as of the newest save whose newest unit can be read.

        Other units of it that cannot be read are replaced by older copies, or left out and
        reported. What is in their place already, or was written by an earlier program and is not in
        the save, is moved aside because it is not verified. Raises CorruptError if no save can be
        read, StoreError, OSError; it may be called again after an error.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / _NEW
        shutil.rmtree(new, ignore_errors=True)
        errors: list[str] = []

        def skip(ref: HeadRef, error: Exception) -> None:
            errors.append(str(error))
            self._report_skipped(ref, str(error))

        saves = list(self._saves(head, skip))
        for at, (ref, manifest, saved) in enumerate(saves):
            try:
                self._download(new, manifest, saved, saved.newest)
            except (CorruptError, NotFoundError) as error:
                skip(ref, error)
                continue
            restored = self._download_others(new, saves[at:])
            self._get_fence().resume_from(ref)
            break
        else:
            restored = self._download_what_can_be_read(new, saves)
            if restored:
                self._get_fence().resume_from(None)
            elif errors:
                raise CorruptError(f"no checkpoint of the job can be read: {errors[0]}")
        self._install(new, restored)
        self._recalled = True

    def _download(self, new: Path, manifest: Manifest, saved: SavedFolder, unit: str) -> None:
        """Download one unit; on an error nothing of it is left."""
        try:
            archive.download(self._get_fence().store, manifest, saved, {unit}, new)
        except (CorruptError, NotFoundError):
            _remove(new / unit)
            raise

    def _download_others(
        self, new: Path, saves: Sequence[tuple[HeadRef, Manifest, SavedFolder]]
    ) -> dict[str, StoredUnit]:
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
                    self._download(new, older_manifest, older, name)
                except (CorruptError, NotFoundError) as error:
                    self._report_skipped(older_ref, f"{name}: {error}")
                else:
                    units[name] = stored_unit(older_manifest, older, name)
                    break
        return units

    def _download_what_can_be_read(
        self, new: Path, saves: Sequence[tuple[HeadRef, Manifest, SavedFolder]]
    ) -> dict[str, StoredUnit]:
        """Download the units of the newest save that has an intact checkpoint."""
        for _, manifest, saved in saves:
            units: dict[str, StoredUnit] = {}
            for name in saved.units:
                try:
                    self._download(new, manifest, saved, name)
                except (CorruptError, NotFoundError):
                    continue
                units[name] = stored_unit(manifest, saved, name)
            if any(unit.number is not None for unit in units.values()):
                return units
            shutil.rmtree(new, ignore_errors=True)
        return {}

    def _install(self, new: Path, restored: Mapping[str, StoredUnit]) -> None:
        """Move downloaded units into the folder, and mark the moment."""
        began_ns = self._began_ns()
        for unit in find_units(self._folder, self._rules):
            if 0 < began_ns < unit.changed_ns:
                self._move_aside(unit.name)
        for name in restored:
            if os.path.lexists(self._folder / name):
                self._move_aside(name)
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).rename(self._folder / name)
        shutil.rmtree(new, ignore_errors=True)
        on_disk = {unit.name: unit for unit in find_units(self._folder, self._rules)}
        self._stored = {
            name: replace(unit, unit=on_disk.get(name)) for name, unit in restored.items()
        }
        self._restored_numbers = highest_numbers(restored.values())
        self._resume_check.watch(on_disk[name] for name in restored if name in on_disk)
        began = self._folder / _BEGAN
        began.unlink(missing_ok=True)
        began.touch()

    def _move_aside(self, name: str) -> None:
        aside = self._folder / _ASIDE / name
        _remove(aside)
        aside.parent.mkdir(parents=True, exist_ok=True)
        (self._folder / name).rename(aside)

    def _began_ns(self) -> int:
        """When the program could begin to write; 0 if it never could."""
        try:
            return (self._folder / _BEGAN).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _saves(
        self, head: Head, skip: Callable[[HeadRef, Exception], None]
    ) -> Iterator[tuple[HeadRef, Manifest, SavedFolder]]:
        """The saves in HEAD's chain, newest first; `skip` is called for unreadable ones."""
        for ref in (head.current, *head.previous):
            if ref is None:
                continue
            try:
                manifest = read_manifest(self._get_fence().store, ref)
                saved = parse_saved_folder(manifest)
            except (CorruptError, NotFoundError, WireError) as error:
                skip(ref, error)
                continue
            if saved is not None and saved.units:
                yield ref, manifest, saved

    # --- while it runs

    def run(self) -> None:
        """Sync every POLL_S until `finish`. Raises FencedError, and what `pause` raises."""
        while not self._closed:
            self.sync()
            self._pause(max(POLL_S, min(QUIET_S, SCAN_SHARE * self._scan_s)))

    def sync(self) -> None:
        """Save units that have settled, and check that the program resumed. Raises FencedError."""
        self._resume_check.poll()
        with self._lock:
            if not self._closed and self._monotonic() >= self._retry_at_s:
                self._sync()

    def finish(self, wait_s: float = QUIET_S, *, clean: bool = True) -> None:
        """Save what the program left behind after it has ended, then stop syncing.

        `clean` says that it ended by itself. Otherwise a file that it was just writing, and whose
        content does not show whether it is complete, stays out. Waits up to `wait_s` for files that
        other programs write. Raises FencedError, and StoreUnavailableError if it should be called
        again.
        """
        self._ending.set()
        deadline_s = self._monotonic() + wait_s
        while True:
            with self._lock:
                if self._closed:
                    return
                pending = self._sync(ended=True, clean=clean)
                if not pending or self._monotonic() >= deadline_s:
                    self._closed = True
                    return
            self._pause(POLL_S)

    def final_content(self) -> tuple[tuple[Stream, ...], Mapping[str, Any]]:
        """Streams and state for the manifest with which the job ends: the newest save's content.

        Units that the program removed since are left out, unless that leaves none.
        """
        with self._lock:
            there = {unit.name for unit in find_units(self._folder, self._rules)}
            units = [unit for name, unit in self._stored.items() if name in there]
            units = units or list(self._stored.values())
            if not units:
                return (), {}
            newest = newest_of(units)
            return content_of(units, newest.name, newest.number)

    def _sync(self, *, ended: bool = False, clean: bool = True) -> bool:
        """Save the folder if it has new content that is complete; return whether some is not."""
        try:
            fence = self._get_fence()
            if fence.head is None or not self._recalled:
                self._recall(fence.claim() if fence.head is None else fence.head)
            units = self._find_units()
            changed, pending = self._divide(units, ended=ended, clean=clean)
            causes = changed if ended else [unit for unit in changed if not unit.is_log]
            if causes and not self._is_behind(causes):
                gone = set() if pending else self._stored.keys() - {unit.name for unit in units}
                if self._save(fence, changed, gone) and not ended:
                    self._remove_old(fence)
        except FencedError:
            raise
        except StaleCommitError:
            # The next manifest follows the commit that landed late.
            return self._sync(ended=ended, clean=clean)
        except Exception as error:  # no failure of a save may end training
            self._back_off(f"{type(error).__name__}: {error}")
            if ended and isinstance(error, StoreUnavailableError):
                raise
            return False
        self._failures, self._retry_at_s = 0, 0.0
        return pending

    def _remove_old(self, fence: Fence) -> None:
        remove_old(
            fence,
            self._keep,
            lambda: not self._ending.is_set(),
            self._keep_every_steps,
            self._read_back,
            shares_shards=True,
        )

    def _recall(self, head: Head) -> None:
        """Learn what an earlier agent on this machine saved or restored."""
        began_ns = self._began_ns()
        on_disk = {unit.name: unit for unit in find_units(self._folder, self._rules)}
        for ref, manifest, saved in self._saves(head, lambda _ref, _error: None):
            units = [stored_unit(manifest, saved, name) for name in saved.units]
            if not self._stored:
                self._stored = {
                    unit.name: replace(unit, unit=unchanged_since(on_disk.get(unit.name), began_ns))
                    for unit in units
                }
            if ref.generation < self._get_fence().generation:
                self._restored_numbers = highest_numbers(units)
                break
        self._recalled = True

    def _find_units(self) -> list[Unit]:
        """The units that the program wrote or that are stored, oldest change first."""
        began_ns, began_s = self._began_ns(), self._monotonic()
        units = [
            unit
            for unit in find_units(self._folder, self._rules)
            if unit.changed_ns > began_ns or unit.name in self._stored
        ]
        self._scan_s = self._monotonic() - began_s
        count = sum(len(unit.files) for unit in units)
        if count > MAX_FILES:
            raise ValueError(
                f"{count} files are more than one save may have ({MAX_FILES}): name those to save "
                "by spotd.checkpoint.include, or leave some out by spotd.checkpoint.exclude"
            )
        self._settle_timer.forget_all_but(units)
        return units

    def _divide(
        self, units: Sequence[Unit], *, ended: bool, clean: bool
    ) -> tuple[list[Unit], bool]:
        """The changed units that are complete, up to the first change that has yet to settle, and
        whether there is one."""
        changed = [unit for unit in units if not self._is_stored(unit)]
        open_files: set[str] = set()
        if any(not unit.is_log for unit in changed):
            open_files = files_open_for_writing(self._folder)
        ready: list[Unit] = []
        unsettled = doubtful = False
        for unit in changed:
            if unit.is_log:
                ready.append(unit)
                continue
            quiet_s = self._settle_timer.quiet_s(unit)
            try:
                state = inspect_unit(self._folder, unit)
            except FileNotFoundError:
                continue  # the program has just removed it
            is_open = any(file.path in open_files for file in unit.files)
            if state is UnitState.BROKEN:
                continue
            if is_open or not is_ready(state, quiet_s, ended=ended):
                unsettled = True
            elif ended and not clean and self._is_doubtful(unit, state, quiet_s):
                doubtful = True
            elif not unsettled and not (doubtful and not looks_like_checkpoint(unit)):
                ready.append(unit)
        self._open_at_last_look = open_files
        return ready, unsettled

    def _is_doubtful(self, unit: Unit, state: UnitState, quiet_s: float) -> bool:
        """Whether the program may have been writing the unit when it was killed or crashed."""
        was_open = any(file.path in self._open_at_last_look for file in unit.files)
        return state is UnitState.UNKNOWN and (was_open or quiet_s <= POLL_S)

    def _is_stored(self, unit: Unit) -> bool:
        stored = self._stored.get(unit.name)
        return stored is not None and stored.unit == unit

    def _is_behind(self, changed: Sequence[Unit]) -> bool:
        """Whether the program has not gone on from what was restored; reported once.

        Its new checkpoints have lower numbers than the restored ones then. Nothing is saved until
        it is beyond them, so that they stay. If it writes restored ones once more, they are saved:
        the program has overwritten them.
        """
        for unit in changed:
            number, series = unit.number, series_name(unit.name)
            restored = self._restored_numbers.get(series)
            if number is None or restored is None:
                continue
            if number > restored:
                del self._restored_numbers[series]
                self._behind.discard(series)
            elif number < restored and unit.name in self._stored:
                self._resume_check.report_rewritten(unit.name, restored)
            elif number < restored and series not in self._behind:
                self._behind.add(series)
                self._resume_check.report_behind(unit.name, restored)
        return bool(self._behind)

    def _save(self, fence: Fence, changed: Sequence[Unit], gone: Set[str]) -> bool:
        """Save the folder with these changes; return whether there was something to save.

        Raises FencedError, StoreError, OSError, ValueError.
        """
        try:
            return self._save_units(fence, changed, gone)
        except ChangedError as error:
            if any(not os.path.lexists(self._folder / unit.name) for unit in changed):
                message = (
                    f"{error} while it was saved: let the program keep more of its checkpoints"
                )
                self._back_off(message)
                return False
        without_logs = [unit for unit in changed if not unit.is_log]
        if len(without_logs) in (0, len(changed)):
            return False
        return self._save(fence, without_logs, gone)

    def _save_units(self, fence: Fence, changed: Sequence[Unit], gone: Set[str]) -> bool:
        """Raises ChangedError, too."""
        started_s = self._monotonic()
        units, new_files = self._read(changed)
        if all(unit.has_same_content(self._stored.get(name)) for name, unit in units.items()):
            self._stored |= units
            return False
        view = {name: unit for name, unit in self._stored.items() if name not in gone} | units
        number = newest_of(view.values()).number
        base = fence.head.current.step if fence.head and fence.head.current else 0
        step = base + 1 if number is None else max(number, base)
        key = manifest_key(fence.job_id, fence.generation, step, secrets.token_hex(8))
        new_streams = [stream for _, stream in new_files.values()]
        keyed: tuple[Stream, ...] = ()

        def put(store: ObjectStore, url: str) -> None:
            nonlocal keyed
            keyed = archive.assign_keys(new_streams, key.rpartition("/")[0], url)
            archive.upload(store, self._folder, [file for file, _ in new_files.values()], keyed)

        self._target.put(step, put, last=self._ending.is_set())
        self._check_unchanged(changed)
        uploaded = dict(zip(new_files, keyed, strict=True))
        view = {name: unit.with_streams(uploaded) for name, unit in view.items()}
        streams, state = content_of(view.values(), newest_of(units.values()).name, number)
        manifest = Manifest(
            job=fence.job_id,
            generation=fence.generation,
            step=step,
            created_at_us=self._now_us(),
            world_size=1,
            streams=streams,
            state=state,
        )
        history = self._read_back.required_history(fence.head, self._keep_every_steps)
        head = fence.commit(manifest, key=key, keep=max(self._keep, history))
        self._stored = view
        new = replace(manifest, streams=keyed)
        duration_s = self._monotonic() - started_s
        self._report(CHECKPOINT, _journal_data(head, manifest, new, duration_s))
        return True

    def _read(
        self, changed: Sequence[Unit]
    ) -> tuple[dict[str, StoredUnit], dict[Identity, tuple[File, Stream]]]:
        """Digest the changed files of changed units; return the units, and the files whose content
        is not stored yet.

        Raises ChangedError, OSError.
        """
        known = {
            identity_of(stream): stream
            for stored in self._stored.values()
            for stream in stored.streams
        }
        units: dict[str, StoredUnit] = {}
        new_files: dict[Identity, tuple[File, Stream]] = {}
        for unit in changed:
            before = self._stored.get(unit.name)
            streams = []
            for file in unit.files:
                stream = before.unchanged_stream(file) if before else None
                stream = stream or archive.digest_file(self._folder / file.path, file.size)
                identity = identity_of(stream)
                if stream.size and identity not in known:
                    new_files.setdefault(identity, (file, stream))
                streams.append(known.get(identity, stream))
            units[unit.name] = StoredUnit(
                name=unit.name,
                files=tuple(
                    SavedFile(file.path, unit.name, file.modified_ns // 1000, file.mode)
                    for file in unit.files
                ),
                streams=tuple(streams),
                links=tuple(SavedLink(link.path, unit.name, link.target) for link in unit.links),
                number=unit.number,
                unit=unit,
            )
        return units, new_files

    def _check_unchanged(self, units: Sequence[Unit]) -> None:
        there = {unit.name: unit for unit in find_units(self._folder, self._rules)}
        for unit in units:
            if there.get(unit.name) != unit and not unit.is_log:
                raise ChangedError(f"{unit.name} was changed")

    def _back_off(self, message: str) -> None:
        """Report a failure and delay the next attempt, at most once per attempt."""
        if self._monotonic() < self._retry_at_s:
            return
        self._retry_at_s = self._monotonic() + min(LAST_RETRY_S, FIRST_RETRY_S * 2**self._failures)
        self._failures += 1
        numbers = [unit.number for unit in self._stored.values() if unit.number is not None]
        self._report_failure(max(numbers, default=0), f"{self._folder.name}: {message}")

    def _report_failure(self, step: int, message: str) -> None:
        self._report(CHECKPOINT_FAILED, {"step": step, "error": message})

    def _report_skipped(self, ref: HeadRef, error: str) -> None:
        data = {"step": ref.step, "manifest": ref.manifest, "error": error}
        self._report(CHECKPOINT_SKIPPED, data)


def _journal_data(
    head: Head, manifest: Manifest, new: Manifest, seconds: float
) -> Mapping[str, Any]:
    """The entry of a save; `new` has the streams that it uploaded."""
    ref = head.current
    assert ref is not None  # noqa: S101 - it was just committed
    return {
        "step": ref.step,
        "manifest": ref.manifest,
        "digest": ref.digest,
        "bytes": manifest.size,
        "new_bytes": new.size,
        "near_bytes": new.near_size,
        "stage_s": 0.0,
        "write_s": round(seconds, 6),
        "trigger": "directory",
        "released": False,
        "final": False,
    }


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
