"""Save the checkpoints that an unmodified program writes to a folder, and restore them.

Units that have settled are committed through the same fence as our engine's checkpoints. Deleting
them from the folder does not delete them from the store; retention does that. Failed saves are
reported and retried, and never end training.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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
    Stream,
    WireError,
    manifest_key,
)
from trainer.directory import archive
from trainer.directory.archive import ArchivedUnit, ChangedError
from trainer.directory.units import (
    QUIET_S,
    SettleTimer,
    Unit,
    UnitState,
    files_open_for_writing,
    find_units,
    inspect_unit,
    is_ready,
    series_name,
    step_number,
)
from trainer.fence import Fence, FencedError, StaleCommitError
from trainer.saver.reader import CorruptError, read_manifest
from trainer.saver.retention import remove_old
from trainer.saver.shard_store import ShardStoreChooser

POLL_S = 1.0
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 30.0
_NEW, _ASIDE = ".spotd-new", ".spotd-aside"  # inside the folder, so that moving files is a rename

Report = Callable[[str, Mapping[str, Any]], None]


class DirectorySync:
    """Synchronizes one job's checkpoint folder with its store.

    Call `restore` before the program starts, `run` in a thread of its own, and `finish` after the
    program has ended. `report(kind, data)` adds a journal entry and must not block. `pause` may
    raise to end `run`.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        keep_every_steps: int,
        get_fence: Callable[[], Fence],
        report: Report,
        *,
        pause: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._folder, self._get_fence = folder, get_fence
        self._keep, self._keep_every_steps = keep, keep_every_steps
        self._report, self._pause, self._monotonic = report, pause, monotonic
        self._now_us = now_us
        self._target = ShardStoreChooser(lambda: get_fence().store, self._report_failure, monotonic)
        self._lock = threading.Lock()
        self._closed = self._recalled = False
        self._ending = threading.Event()
        self._settle_timer = SettleTimer(monotonic)
        self._handled: dict[str, Unit] = {}
        self._stored: dict[str, tuple[str, ...]] = {}  # by unit, the digests in the store
        self._numbers: dict[str, int] = {}  # by series, of the newest unit in the store
        self._failures, self._retry_at_s = 0, 0.0

    # --- before the program starts

    def restore(self, head: Head) -> None:
        """Restore the newest readable unit of each series into the folder.

        Modification times are set so that the newest unit is the newest in the folder. Units that
        are there already are moved aside because they are not verified. Raises CorruptError if no
        unit can be read, StoreError, OSError; it may be called again after an error.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / _NEW
        shutil.rmtree(new, ignore_errors=True)
        restored: list[tuple[HeadRef, Manifest, ArchivedUnit]] = []
        errors: list[str] = []

        def skip(ref: HeadRef, error: Exception) -> None:
            if not restored:  # once one is restored, retention may have deleted older ones
                errors.append(str(error))
                data = {"step": ref.step, "manifest": ref.manifest, "error": str(error)}
                self._report(CHECKPOINT_SKIPPED, data)

        for ref, manifest, archived in self._archived_units(head, skip):
            if series_name(archived.unit) in {series_name(unit.unit) for _, _, unit in restored}:
                continue
            try:
                archive.download(self._get_fence().store, manifest, archived, new)
            except (CorruptError, NotFoundError) as error:
                _remove(new / archived.unit)
                skip(ref, error)
            else:
                restored.append((ref, manifest, archived))
        if errors and not restored:
            raise CorruptError(f"no checkpoint of the job can be read: {errors[0]}")
        if restored:
            self._get_fence().resume_from(restored[0][0])
            self._install(new, [archived.unit for _, _, archived in reversed(restored)])
            self._handled = {unit.name: unit for unit in find_units(self._folder)}
        for _, manifest, archived in restored:
            self._record(archived, manifest.streams)
        self._recalled = True

    def _install(self, new: Path, names: list[str]) -> None:
        """Move downloaded units into the folder; the last of `names` gets the newest times."""
        aside = self._folder / _ASIDE
        for unit in find_units(self._folder):
            aside.mkdir(exist_ok=True)
            _remove(aside / unit.name)
            (self._folder / unit.name).rename(aside / unit.name)
        for age, name in enumerate(reversed(names)):
            _set_mtime(new / name, self._now_us() - age * 1_000_000)
        for name in names:
            (new / name).rename(self._folder / name)
        shutil.rmtree(new)

    def _archived_units(
        self, head: Head, skip: Callable[[HeadRef, Exception], None]
    ) -> Iterator[tuple[HeadRef, Manifest, ArchivedUnit]]:
        """The units in HEAD's chain, newest first; `skip` is called for unreadable ones."""
        for ref in (head.current, *head.previous):
            if ref is None:
                continue
            try:
                manifest = read_manifest(self._get_fence().store, ref)
                archived = archive.parse_archived(manifest)
            except (CorruptError, NotFoundError, WireError) as error:
                skip(ref, error)
                continue
            if archived is not None:
                yield ref, manifest, archived

    # --- while it runs

    def run(self) -> None:
        """Sync every POLL_S until `finish`. Raises FencedError, and what `pause` raises."""
        while not self._closed:
            self.sync()
            self._pause(POLL_S)

    def sync(self) -> None:
        """Save units that have settled. Raises FencedError."""
        with self._lock:
            if not self._closed and self._monotonic() >= self._retry_at_s:
                self._sync(ended=False)

    def finish(self, wait_s: float = QUIET_S) -> None:
        """Save the complete units after the program has ended, then stop syncing.

        Waits up to `wait_s` for units that do not show whether they are complete. Raises
        FencedError, and StoreUnavailableError if it should be called again.
        """
        self._ending.set()
        deadline_s = self._monotonic() + wait_s
        while True:
            with self._lock:
                if self._closed:
                    return
                pending = self._sync(ended=True)
                if not pending or self._monotonic() >= deadline_s:
                    self._closed = True
                    return
            self._pause(POLL_S)

    def _sync(self, *, ended: bool) -> bool:
        """Save ready units; return whether others have yet to settle."""
        try:
            fence = self._get_fence()
            if fence.head is None or not self._recalled:
                self._recall(fence.claim() if fence.head is None else fence.head)
            ready, pending = self._find_ready(ended=ended)
            saved = [unit for unit in ready if self._save(fence, unit)]
            if saved and not ended:
                should_continue = lambda: not self._ending.is_set()  # noqa: E731
                remove_old(fence, self._keep, should_continue, self._keep_every_steps)
        except FencedError:
            raise
        except StaleCommitError:
            return self._sync(ended=ended)  # the next manifest follows the commit that landed late
        except Exception as error:  # no failure of a save may end training
            self._back_off(f"{type(error).__name__}: {error}")
            if ended and isinstance(error, StoreUnavailableError):
                raise
            return False
        self._failures, self._retry_at_s = 0, 0.0
        return pending

    def _recall(self, head: Head) -> None:
        """Record the units that an earlier agent on this machine saved."""
        for _, manifest, archived in self._archived_units(head, lambda _ref, _error: None):
            if series_name(archived.unit) not in self._numbers:
                self._record(archived, manifest.streams)
        self._recalled = True

    def _find_ready(self, *, ended: bool) -> tuple[list[Unit], bool]:
        """The newest saveable unit of each series, and whether others have yet to settle."""
        ready, pending = [], False
        for unit in find_units(self._folder):
            if self._handled.get(unit.name) == unit:
                continue
            state, quiet_s = inspect_unit(self._folder, unit), self._settle_timer.quiet_s(unit)
            if is_ready(state, quiet_s, ended=ended):
                ready.append(unit)
            else:
                pending = pending or state is not UnitState.BROKEN
        written = files_open_for_writing(self._folder) if ready else set()
        newest: dict[str, Unit] = {}
        for unit in ready:
            if not written.isdisjoint(file.path for file in unit.files):
                pending = True
                continue
            if older := newest.pop(series_name(unit.name), None):
                self._handled[older.name] = older
            newest[series_name(unit.name)] = unit
        return list(newest.values()), pending

    def _save(self, fence: Fence, unit: Unit) -> bool:
        """Save a unit unless it is in the store already; return whether it was saved.

        Raises FencedError, StoreError, OSError, ValueError.
        """
        started_s, number = self._monotonic(), step_number(unit.name)
        try:
            streams = archive.digest_unit(self._folder, unit)
            if self._stored.get(unit.name) == _digests(streams) or self._is_outdated(unit, number):
                self._handled[unit.name] = unit
                return False
            manifest, key = self._make_manifest(fence, unit, number, streams)

            def put(store: ObjectStore, url: str) -> None:
                nonlocal manifest
                keyed = archive.assign_keys(streams, key.rpartition("/")[0], url)
                archive.upload(store, self._folder, unit, keyed)
                manifest = replace(manifest, streams=keyed)

            self._target.put(manifest.step, put, last=self._ending.is_set())
            if unit not in find_units(self._folder):
                raise ChangedError(f"{unit.name} was changed")
        except ChangedError as error:
            if not (self._folder / unit.name).exists():
                message = (
                    f"{error} while it was saved: let the program keep more of its checkpoints"
                )
                self._back_off(message)
            return False
        head = fence.commit(manifest, key=key, keep=self._keep)
        self._handled[unit.name] = unit
        self._record(archive.parse_archived(manifest), manifest.streams)
        self._report(CHECKPOINT, _journal_data(head, manifest, self._monotonic() - started_s))
        return True

    def _is_outdated(self, unit: Unit, number: int | None) -> bool:
        """Whether the store has a newer unit of the series. Reported unless it has both."""
        last = self._numbers.get(series_name(unit.name))
        if number is None or last is None or number >= last:
            return False
        if unit.name in self._stored:
            return True  # an old unit that was modified since
        message = (
            f"{unit.name} is not saved, for {last} is the newest already: the program has not gone "
            "on from what was restored (SPOTD_RESUME names it)"
        )
        self._report_failure(number, message)
        return True

    def _make_manifest(
        self, fence: Fence, unit: Unit, number: int | None, streams: tuple[Stream, ...]
    ) -> tuple[Manifest, str]:
        head = fence.head
        base = head.current.step if head and head.current else 0
        step = base + 1 if number is None else max(number, base)
        key = manifest_key(fence.job_id, fence.generation, step, secrets.token_hex(8))
        manifest = Manifest(
            job=fence.job_id,
            generation=fence.generation,
            step=step,
            created_at_us=self._now_us(),
            world_size=1,
            streams=streams,
            state=archive.manifest_state(unit, number),
        )
        return manifest, key

    def _record(self, archived: ArchivedUnit | None, streams: tuple[Stream, ...]) -> None:
        if archived is not None:
            self._stored[archived.unit] = _digests(streams)
            if archived.number is not None:
                self._numbers[series_name(archived.unit)] = archived.number

    def _back_off(self, message: str) -> None:
        """Report a failure and delay the next attempt, at most once per attempt."""
        if self._monotonic() < self._retry_at_s:
            return
        self._retry_at_s = self._monotonic() + min(LAST_RETRY_S, FIRST_RETRY_S * 2**self._failures)
        self._failures += 1
        step = max(self._numbers.values(), default=0)
        self._report_failure(step, f"{self._folder.name}: {message}")

    def _report_failure(self, step: int, message: str) -> None:
        self._report(CHECKPOINT_FAILED, {"step": step, "error": message})


def _digests(streams: tuple[Stream, ...]) -> tuple[str, ...]:
    return tuple(
        digest for stream in streams for shard in stream.shards for digest in shard.digests
    )


def _journal_data(head: Head, manifest: Manifest, seconds: float) -> Mapping[str, Any]:
    ref = head.current
    assert ref is not None  # noqa: S101 - it was just committed
    return {
        "step": ref.step,
        "manifest": ref.manifest,
        "digest": ref.digest,
        "bytes": manifest.size,
        "near_bytes": manifest.near_size,
        "stage_s": 0.0,
        "write_s": round(seconds, 6),
        "trigger": "directory",
        "released": False,
        "final": False,
    }


def _set_mtime(path: Path, at_us: int) -> None:
    """Set the times of a unit and all its files: programs resume from the newest."""
    inside = path.rglob("*") if path.is_dir() else ()
    for entry in (*inside, path):
        os.utime(entry, ns=(at_us * 1000, at_us * 1000))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
