"""Save the folder that an unmodified program writes its checkpoints to, and restore it.

Each save describes the whole folder, and uploads what is new in it. It is committed through the
same fence as our engine's checkpoints. Failed saves are reported and retried, and never end
training.
"""

from __future__ import annotations

import os
import secrets
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
    WARNING,
    Head,
    HeadRef,
    Manifest,
    SavedDirectory,
    SavedFile,
    SavedLink,
    Stream,
    WireError,
    manifest_key,
    parse_saved_folder,
)
from trainer.directory import archive
from trainer.directory.archive import ChangedError
from trainer.directory.consistent_cut import Cut, CutFinder, pointed_at
from trainer.directory.restore import Restorer, Save, began_at_ns
from trainer.directory.resume_check import ResumeCheck
from trainer.directory.stored_units import (
    Identity,
    StoredUnit,
    content_of,
    directories_of,
    highest_numbers,
    identity_of,
    newest_of,
    stored_units,
    unchanged_since,
)
from trainer.directory.units import (
    ALL_FILES,
    QUIET_S,
    File,
    Rules,
    Unit,
    find_units,
    looks_like_checkpoint,
    parents_of,
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
MAX_NAMED = 3  # units in one message

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
        self._cuts = CutFinder(self._folder, POLL_S, monotonic)
        self._stored: dict[str, StoredUnit] = {}
        self._directories: tuple[SavedDirectory, ...] = ()  # of the newest save
        self._restored_numbers: dict[str, int] = {}  # by series, until the program is beyond
        self._behind: set[str] = set()  # series in which the program wrote a lower number
        self._has_newer_times = False  # than the newest save: of files with the same content
        self._outside: set[str] = set()  # links out of the folder that were reported
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
        errors: list[str] = []

        def skip(ref: HeadRef, error: str) -> None:
            errors.append(error)
            self._report_skipped(ref, error)

        fence = self._get_fence()
        saves = list(self._saves(head, skip))
        restored = Restorer(self._folder, self._rules, fence.store, skip).restore(saves)
        if restored.units:
            fence.resume_from(restored.ref)
        elif errors:
            raise CorruptError(f"no checkpoint of the job can be read: {errors[0]}")
        self._stored, self._directories = dict(restored.units), restored.directories
        self._restored_numbers = highest_numbers(self._stored.values())
        self._resume_check.watch(
            stored.unit for stored in self._stored.values() if stored.unit is not None
        )
        self._recalled = True

    def _saves(self, head: Head, skip: Callable[[HeadRef, str], None]) -> Iterator[Save]:
        """The saves in HEAD's chain, newest first.

        `skip` is called for those that cannot be read, up to the first that can: retention may have
        deleted older ones.
        """
        is_readable = False
        for ref in (head.current, *head.previous):
            if ref is None:
                continue
            try:
                manifest = read_manifest(self._get_fence().store, ref)
                saved = parse_saved_folder(manifest)
            except (CorruptError, NotFoundError, WireError) as error:
                if not is_readable:
                    skip(ref, str(error))
                continue
            if saved is not None and saved.units:
                is_readable = True
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
        other programs write, and reports what stays out. Raises FencedError, and
        StoreUnavailableError if it should be called again.
        """
        self._ending.set()
        deadline_s = self._monotonic() + wait_s
        while True:
            with self._lock:
                if self._closed:
                    return
                cut = self._sync(ended=True, clean=clean)
                if not cut.waiting or self._monotonic() >= deadline_s:
                    self._closed = True
                    self._report_not_saved(cut)
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
            directories = directories_of(self._folder, units, self._directories)
            return content_of(units, newest.name, newest.number, directories)

    def _sync(self, *, ended: bool = False, clean: bool = True) -> Cut:
        """Save the folder if it has new content that is complete; return what it was."""
        cut = Cut()
        try:
            fence = self._get_fence()
            if fence.head is None or not self._recalled:
                self._recall(fence.claim() if fence.head is None else fence.head)
            units = self._find_units()
            changed = [unit for unit in units if not self._is_stored(unit)]
            cut = self._cuts.find(changed, units, self._stored.keys(), ended=ended, clean=clean)
            causes = [unit for unit in cut.ready if ended or _causes_save(unit)]
            gone = self._gone(units, cut, is_over=ended and clean)
            shrinks = bool(gone) and bool(self._stored.keys() - gone)
            differs = ended and (shrinks or self._has_newer_times)
            if (causes or differs) and not self._is_behind(causes):
                saved = self._save(fence, cut.ready, gone)
                if saved and not ended:
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
            return replace(cut, waiting=())
        self._failures, self._retry_at_s = 0, 0.0
        return cut

    def _gone(self, units: Sequence[Unit], cut: Cut, *, is_over: bool) -> set[str]:
        """The stored units that the program has deleted and that may leave the save.

        Unless the program `is_over`, its newest checkpoint stays until it has written another.
        """
        present = {unit.name for unit in units}
        kept = [unit for name, unit in self._stored.items() if name in present]
        times = [unit.modified_us for unit in kept if unit.number is not None]
        times += [unit.modified_ns // 1000 for unit in cut.ready if looks_like_checkpoint(unit)]
        targets = pointed_at({link.path: link.target for unit in kept for link in unit.links})
        gone = {
            name
            for name in self._stored.keys() - present
            if cut.may_drop(
                name,
                self._stored[name].modified_us,
                newest_us=max(times, default=0),
                pointed_at=targets,
            )
        }
        deleted = [self._stored[name] for name in gone if self._stored[name].is_checkpoint]
        has_other = any(unit.is_checkpoint for unit in kept) or any(
            looks_like_checkpoint(unit) for unit in cut.ready
        )
        if deleted and not has_other and not is_over:
            gone.discard(newest_of(deleted).name)
        return gone

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
        began_ns = began_at_ns(self._folder)
        on_disk = {unit.name: unit for unit in find_units(self._folder, self._rules)}
        for ref, manifest, saved in self._saves(head, lambda _ref, _error: None):
            units = list(stored_units(manifest, saved).values())
            if not self._stored:
                self._stored = {
                    unit.name: replace(unit, unit=unchanged_since(on_disk.get(unit.name), began_ns))
                    for unit in units
                }
                self._directories = saved.directories
            if ref.generation < self._get_fence().generation:
                self._restored_numbers = highest_numbers(units)
                break
        self._recalled = True

    def _find_units(self) -> list[Unit]:
        """The units that the program wrote or that are stored, oldest change first."""
        began_ns, began_s = began_at_ns(self._folder), self._monotonic()
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
        self._cuts.forget_all_but(units)
        return units

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
        ended = self._ending.is_set()
        same = [
            (unit.has_same_content(stored), unit.has_same_content(stored, times=True))
            for name, unit in units.items()
            for stored in [self._stored.get(name)]
        ]
        self._has_newer_times |= any(not times for _, times in same)
        if all(content for content, _ in same) and not (ended and (gone or self._has_newer_times)):
            self._stored |= units
            return False
        overlapped = _overlapped(self._stored.keys(), units.keys())
        view = {
            name: unit
            for name, unit in self._stored.items()
            if name not in gone and name not in overlapped
        } | units
        number = newest_of(view.values()).number
        base = fence.head.current.step if fence.head and fence.head.current else 0
        # Step 0 means that nothing is saved: an epoch 0 is counted like a name without a number.
        step = base + 1 if number is None else max(number, base, 1)
        number = number or None
        key = manifest_key(fence.job_id, fence.generation, step, secrets.token_hex(8))
        new_streams = [stream for _, stream in new_files.values()]
        keyed: tuple[Stream, ...] = ()

        def put(store: ObjectStore, url: str) -> None:
            nonlocal keyed
            keyed = archive.assign_keys(new_streams, key.rpartition("/")[0], url)
            archive.upload(store, self._folder, [file for file, _ in new_files.values()], keyed)

        self._target.put(step, put, last=ended)
        self._check_unchanged(changed)
        uploaded = dict(zip(new_files, keyed, strict=True))
        view = {name: unit.with_streams(uploaded) for name, unit in view.items()}
        directories = directories_of(self._folder, view.values(), self._directories)
        newest = newest_of(units.values() or view.values()).name
        streams, state = content_of(view.values(), newest, number, directories)
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
        self._stored, self._directories = view, directories
        self._has_newer_times = False
        self._report_outside(view)
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
                    SavedFile(
                        path=file.path,
                        unit=unit.name,
                        modified_us=max(file.modified_ns // 1000, 0),
                        mode=file.mode,
                    )
                    for file in unit.files
                ),
                streams=tuple(streams),
                links=tuple(SavedLink(link.path, unit.name, link.target) for link in unit.links),
                number=unit.number,
                unit=unit,
                empty_directories=tuple(directory.path for directory in unit.directories),
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

    def _report_not_saved(self, cut: Cut) -> None:
        """Report what of the folder is in no save, or only as it was before."""
        names = sorted(cut.not_saved)
        if names:
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            text = (
                f"not complete when the program had ended, so not saved as it is: "
                f"{', '.join(names[:MAX_NAMED])}{more}"
            )
            self._report(WARNING, {"text": text})

    def _report_outside(self, units: Mapping[str, StoredUnit]) -> None:
        """Report each link out of the folder once."""
        links = [link for unit in units.values() for link in unit.links if link.leads_out]
        for link in links:
            if link.path not in self._outside:
                self._outside.add(link.path)
                text = (
                    f"{link.path} is a link out of the folder, to {link.target}: the link is "
                    "saved, but not what it points to"
                )
                self._report(WARNING, {"text": text})

    def _report_failure(self, step: int, message: str) -> None:
        self._report(CHECKPOINT_FAILED, {"step": step, "error": message})

    def _report_skipped(self, ref: HeadRef, error: str) -> None:
        data = {"step": ref.step, "manifest": ref.manifest, "error": error}
        self._report(CHECKPOINT_SKIPPED, data)


def _causes_save(unit: Unit) -> bool:
    """Whether a change of the unit is worth a save of its own."""
    return not unit.is_log and not unit.is_empty_directory


def _overlapped(stored: Set[str], new: Set[str]) -> set[str]:
    """The stored units in which a new one lies, or that lie in it: they are divided otherwise."""
    above = {parent for name in new for parent in parents_of(name)}
    return {name for name in stored if name in above or not new.isdisjoint(parents_of(name))}


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
