"""A folder of checkpoints that a program knows nothing of us writes to, kept in the job's store.

What has settled there is saved by the same fence as our engine's checkpoints; what the program
removes stays in the store, where retention decides. A save that fails is told and tried again, and
never ends training.
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
    find_units,
    is_ready,
    look_at,
    number_of,
    series_of,
    written_below,
)
from trainer.fence import Fence, FencedError, StaleCommitError
from trainer.saver.reader import CorruptError, read_manifest
from trainer.saver.retention import remove_old
from trainer.saver.shard_store import ShardTarget

LOOK_S = 1.0
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 30.0
_NEW, _ASIDE = ".spotd-new", ".spotd-aside"  # below the folder, so that a rename takes from there

Report = Callable[[str, Mapping[str, Any]], None]


class Directory:
    """One job's folder on this machine. `restore` comes before the program starts, `run` has a
    thread of its own, `finish` comes when the program has ended. `report(kind, data)` takes journal
    entries and never blocks; `pause` may raise to end `run`."""

    def __init__(
        self,
        folder: Path,
        keep: int,
        keep_every_steps: int,
        fence_of: Callable[[], Fence],
        report: Report,
        *,
        pause: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._folder, self._fence_of = folder, fence_of
        self._keep, self._keep_every_steps = keep, keep_every_steps
        self._report, self._pause, self._monotonic = report, pause, monotonic
        self._now_us = now_us
        self._target = ShardTarget(lambda: fence_of().store, self._say_failed, monotonic)
        self._lock = threading.Lock()
        self._closed = self._known = False
        self._ending = threading.Event()
        self._patience = SettleTimer(monotonic)
        self._done: dict[str, Unit] = {}
        self._held: dict[str, tuple[str, ...]] = {}  # by unit, the digests that the store has
        self._numbers: dict[str, int] = {}  # by series
        self._failures, self._not_before_s = 0, 0.0

    # --- before the program starts

    def restore(self, head: Head) -> None:
        """Put the newest verified unit of each series into the folder; the newest of all is the
        youngest file there. What lies there besides, and nobody verified, is set aside.

        Raises CorruptError when there are units and none can be read, StoreError, OSError; then it
        may be called again.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / _NEW
        shutil.rmtree(new, ignore_errors=True)
        found: list[tuple[HeadRef, Manifest, ArchivedUnit]] = []
        troubles: list[str] = []

        def skip(ref: HeadRef, error: Exception) -> None:
            if not found:  # of an older one, retention has taken what is missing
                troubles.append(str(error))
                said = {"step": ref.step, "manifest": ref.manifest, "error": str(error)}
                self._report(CHECKPOINT_SKIPPED, said)

        for ref, manifest, saved in self._units(head, skip):
            if series_of(saved.unit) in {series_of(one.unit) for _, _, one in found}:
                continue
            try:
                archive.fetch(self._fence_of().store, manifest, saved, new)
            except (CorruptError, NotFoundError) as error:
                _remove(new / saved.unit)
                skip(ref, error)
            else:
                found.append((ref, manifest, saved))
        if troubles and not found:
            raise CorruptError(f"no checkpoint of the job can be read: {troubles[0]}")
        if found:
            self._fence_of().resume_from(found[0][0])
            self._put_in_place(new, [saved.unit for _, _, saved in reversed(found)])
            self._done = {unit.name: unit for unit in find_units(self._folder)}
        for _, manifest, saved in found:
            self._remember(saved, manifest.streams)
        self._known = True

    def _put_in_place(self, new: Path, names: list[str]) -> None:
        """The last of them is to be the youngest."""
        aside = self._folder / _ASIDE
        for unit in find_units(self._folder):
            aside.mkdir(exist_ok=True)
            _remove(aside / unit.name)
            (self._folder / unit.name).rename(aside / unit.name)
        for age, name in enumerate(reversed(names)):
            _date(new / name, self._now_us() - age * 1_000_000)
        for name in names:
            (new / name).rename(self._folder / name)
        shutil.rmtree(new)

    def _units(
        self, head: Head, skip: Callable[[HeadRef, Exception], None]
    ) -> Iterator[tuple[HeadRef, Manifest, ArchivedUnit]]:
        """Those of HEAD's chain, newest first; `skip` hears of what cannot be read."""
        for ref in (head.current, *head.previous):
            if ref is None:
                continue
            try:
                manifest = read_manifest(self._fence_of().store, ref)
                saved = archive.read_saved(manifest)
            except (CorruptError, NotFoundError, WireError) as error:
                skip(ref, error)
                continue
            if saved is not None:
                yield ref, manifest, saved

    # --- while it runs

    def run(self) -> None:
        """Look again and again. Raises FencedError, and what `pause` raises."""
        while not self._closed:
            self.sync()
            self._pause(LOOK_S)

    def sync(self) -> None:
        """Save what has settled. Raises FencedError."""
        with self._lock:
            if not self._closed and self._monotonic() >= self._not_before_s:
                self._sync(over=False)

    def finish(self, wait_s: float = QUIET_S) -> None:
        """The program has ended: save what it left whole, and nothing after that. What does not
        show whether it is whole is waited for, for so long. Raises FencedError, and
        StoreUnavailableError when it is to be called again."""
        self._ending.set()
        until_s = self._monotonic() + wait_s
        while True:
            with self._lock:
                if self._closed:
                    return
                left = self._sync(over=True)
                if not left or self._monotonic() >= until_s:
                    self._closed = True
                    return
            self._pause(LOOK_S)

    def _sync(self, *, over: bool) -> bool:
        """Whether something is still to settle."""
        try:
            fence = self._fence_of()
            if fence.head is None or not self._known:
                self._recall(fence.claim() if fence.head is None else fence.head)
            ready, left = self._ready(over=over)
            saved = [unit for unit in ready if self._save(fence, unit)]
            if saved and not over:
                go_on = lambda: not self._ending.is_set()  # noqa: E731
                remove_old(fence, self._keep, go_on, self._keep_every_steps)
        except FencedError:
            raise
        except StaleCommitError:
            return self._sync(over=over)  # the next manifest follows what has landed
        except Exception as error:  # whatever it is, no failure of a save may end training
            self._note_failure(f"{type(error).__name__}: {error}")
            if over and isinstance(error, StoreUnavailableError):
                raise
            return False
        self._failures, self._not_before_s = 0, 0.0
        return left

    def _recall(self, head: Head) -> None:
        """What another agent on this machine has saved before us."""
        for _, manifest, saved in self._units(head, lambda _ref, _error: None):
            if series_of(saved.unit) not in self._numbers:
                self._remember(saved, manifest.streams)
        self._known = True

    def _ready(self, *, over: bool) -> tuple[list[Unit], bool]:
        """The newest of each series that may be saved; whether others are still to settle."""
        ready, left = [], False
        for unit in find_units(self._folder):
            if self._done.get(unit.name) == unit:
                continue
            look, quiet_s = look_at(self._folder, unit), self._patience.quiet_s(unit)
            if is_ready(look, quiet_s, over=over):
                ready.append(unit)
            else:
                left = left or look is not UnitState.BROKEN
        written = written_below(self._folder) if ready else set()
        found: dict[str, Unit] = {}
        for unit in ready:
            if not written.isdisjoint(file.path for file in unit.files):
                left = True
                continue
            if older := found.pop(series_of(unit.name), None):
                self._done[older.name] = older
            found[series_of(unit.name)] = unit
        return list(found.values()), left

    def _save(self, fence: Fence, unit: Unit) -> bool:
        """Whether it was saved now. Raises FencedError, StoreError, OSError, ValueError."""
        began_s, number = self._monotonic(), number_of(unit.name)
        try:
            found = archive.digest(self._folder, unit)
            if self._held.get(unit.name) == _digests(found) or self._goes_back(unit, number):
                self._done[unit.name] = unit
                return False
            manifest, key = self._manifest(fence, unit, number, found)

            def put(store: ObjectStore, url: str) -> None:
                nonlocal manifest
                placed = archive.place(found, key.rpartition("/")[0], url)
                archive.put(store, self._folder, unit, placed)
                manifest = replace(manifest, streams=placed)

            self._target.put(manifest.step, put, last=self._ending.is_set())
            if unit not in find_units(self._folder):
                raise ChangedError(f"{unit.name} was changed")
        except ChangedError as error:
            if not (self._folder / unit.name).exists():
                text = f"{error} while it was saved: let the program keep more of its checkpoints"
                self._note_failure(text)
            return False
        head = fence.commit(manifest, key=key, keep=self._keep)
        self._done[unit.name] = unit
        self._remember(archive.read_saved(manifest), manifest.streams)
        self._report(CHECKPOINT, _said(head, manifest, self._monotonic() - began_s))
        return True

    def _goes_back(self, unit: Unit, number: int | None) -> bool:
        last = self._numbers.get(series_of(unit.name))
        if number is None or last is None or number >= last:
            return False
        if unit.name in self._held:
            return True  # an old one that was touched since
        text = (
            f"{unit.name} is not saved, for {last} is the newest already: the program has not gone "
            "on from what was restored (SPOTD_RESUME names it)"
        )
        self._say_failed(number, text)
        return True

    def _manifest(
        self, fence: Fence, unit: Unit, number: int | None, found: tuple[Stream, ...]
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
            streams=found,
            state=archive.state_of(unit, number),
        )
        return manifest, key

    def _remember(self, saved: ArchivedUnit | None, streams: tuple[Stream, ...]) -> None:
        if saved is not None:
            self._held[saved.unit] = _digests(streams)
            if saved.number is not None:
                self._numbers[series_of(saved.unit)] = saved.number

    def _note_failure(self, text: str) -> None:
        """Told as often as it is tried again in peace."""
        if self._monotonic() < self._not_before_s:
            return
        self._not_before_s = self._monotonic() + min(
            LAST_RETRY_S, FIRST_RETRY_S * 2**self._failures
        )
        self._failures += 1
        self._say_failed(max(self._numbers.values(), default=0), f"{self._folder.name}: {text}")

    def _say_failed(self, step: int, text: str) -> None:
        self._report(CHECKPOINT_FAILED, {"step": step, "error": text})


def _digests(found: tuple[Stream, ...]) -> tuple[str, ...]:
    return tuple(one for stream in found for shard in stream.shards for one in shard.digests)


def _said(head: Head, manifest: Manifest, seconds: float) -> Mapping[str, Any]:
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


def _date(path: Path, at_us: int) -> None:
    """Have all of it be of that moment: programs choose the youngest."""
    inside = path.rglob("*") if path.is_dir() else ()
    for one in (*inside, path):
        os.utime(one, ns=(at_us * 1000, at_us * 1000))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
