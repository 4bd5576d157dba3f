"""Saving without stopping training, and resuming from what was really committed.

The training thread copies the state into an arena and goes on; a writer thread hashes it, puts the
shards and commits through the fence. One save is in flight, one may wait, and a newer one takes the
place of the one that waits. A save that fails is reported and tried again; it never ends training.

`python -m trainer.checkpoint show|compare` looks at checkpoints by hand.
"""

from __future__ import annotations

import contextlib
import mmap
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from providers.stores.base import NotFoundError, StoreUnavailableError
from spotd.wire import (
    CHECKPOINT,
    CHECKPOINT_FAILED,
    CHECKPOINT_SKIPPED,
    Head,
    HeadRef,
    Manifest,
    manifest_key,
)
from trainer.fence import Fence, FencedError
from trainer.retention import remove_old
from trainer.shards import CorruptError, Layout, read_manifest, read_shards, write_shards

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
READ_ATTEMPTS = 3


class MismatchError(Exception):
    """The checkpoint is of another model, configuration or data; the text names the difference."""


class UnusableError(Exception):
    """HEAD names checkpoints and none of them can be read."""


@dataclass
class _Save:
    """One snapshot on its way out."""

    arena: int
    step: int
    state: Mapping[str, Any]
    trigger: str
    released: bool
    final: bool
    folder: str
    created_at_us: int
    stage_s: float
    failures: int = 0


class Checkpointer:
    """Saves and restores one job's state, held in two arenas of `layout.size` bytes.

    `report(kind, data)` takes journal entries and must not block. Saves begin after the fence has
    claimed HEAD. Close it, or its thread stays.
    """

    def __init__(
        self,
        fence: Fence,
        layout: Layout,
        *,
        world_size: int,
        keep: int,
        report: Callable[[str, Mapping[str, Any]], None],
        make_nonce: Callable[[], str] = lambda: secrets.token_hex(8),
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._fence, self._layout = fence, layout
        self._store, self._job_id = fence.store, fence.job_id
        self._world_size, self._keep = world_size, keep
        self._report = report
        self._make_nonce, self._clock_us = make_nonce, clock_us
        # Anonymous maps: page-aligned, and every page is touched now and not in the first save.
        self._arenas = tuple(memoryview(mmap.mmap(-1, layout.size)) for _ in range(2))
        for arena in self._arenas:
            arena[:: mmap.PAGESIZE] = bytes(-(-layout.size // mmap.PAGESIZE))
        self._changed = threading.Condition()
        self._waiting: _Save | None = None
        self._writing: _Save | None = None
        self._untidy = False
        self._closed = self._given_up = False
        self.fenced: FencedError | None = None
        self.cost_s = 0.0  # stage and write of the newest save
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def save(
        self,
        step: int,
        stage: Callable[[memoryview], None],
        state: Mapping[str, Any],
        *,
        trigger: str,
        released: bool = False,
        final: bool = False,
    ) -> None:
        """Snapshot now, commit in the background. Blocks for the copy only.

        `released`: with this save HEAD is given away, nothing may be saved after it.
        """
        with self._changed:
            self._waiting = None  # not begun, and older than this one
            arena = 1 - self._writing.arena if self._writing else 0
        started = time.perf_counter()
        stage(self._arenas[arena])
        folder = manifest_key(self._job_id, self._fence.generation, step, self._make_nonce())
        save = _Save(
            arena=arena,
            step=step,
            state=dict(state),
            trigger=trigger,
            released=released,
            final=final,
            folder=folder.rpartition("/")[0],
            created_at_us=self._clock_us(),
            stage_s=time.perf_counter() - started,
        )
        with self._changed:
            self._waiting = save
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything is committed; False when time ran out or we are fenced."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.fenced or not (self._waiting or self._writing), timeout_s
            )
            return not (self.fenced or self._waiting or self._writing)

    def give_up(self) -> None:
        """HEAD is given away without the save under way: nobody waits for it, or hears of it."""
        with self._changed:
            self._given_up = self._closed = True
            self._changed.notify_all()

    def close(self) -> bool:
        """Stop the writer; a save that waits or fails is given up. False while the store has not
        answered a save that was given up: then the thread is there still."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(0 if self._given_up else None)
        return not self._thread.is_alive()

    def restore(
        self, head: Head, config: Mapping[str, Any], load: Callable[[memoryview], None]
    ) -> tuple[HeadRef, Manifest] | None:
        """Load the newest usable checkpoint of `head`'s chain; None when there is none at all.

        Torn and corrupt ones are reported and passed over. Raises MismatchError when the one to use
        was made with another `config`, UnusableError when the whole chain is broken, and
        StoreUnavailableError when the store stays away: that is no reason to go back in time.
        """
        chain = [ref for ref in (head.current, *head.previous) if ref]
        for ref in chain:
            try:
                manifest = _patiently(partial(self._read, ref, config))
            except (CorruptError, NotFoundError) as error:
                self._report(
                    CHECKPOINT_SKIPPED,
                    {"step": ref.step, "manifest": ref.manifest, "error": str(error)},
                )
                continue
            load(self._arenas[0])
            self._fence.resume_from(ref)
            return ref, manifest
        if chain:
            raise UnusableError(
                f"none of the {len(chain)} checkpoints of job {self._job_id} can be read; the "
                "reasons are above. Restore the store from a copy, or start a new job"
            )
        return None

    def _read(self, ref: HeadRef, config: Mapping[str, Any]) -> Manifest:
        manifest = read_manifest(self._store, ref)
        check_config(manifest, config)
        read_shards(self._store, manifest, self._arenas[0], self._layout)
        return manifest

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting or self._untidy)
                if self._closed:
                    return
                self._writing, self._waiting = self._waiting, None
                save = self._writing
            if save is None:
                self._tidy()
            else:
                self._attempt(save)

    def _attempt(self, save: _Save) -> None:
        try:
            self._write(save)
        except FencedError as error:
            with self._changed:
                self.fenced, self._writing, self._closed = error, None, True
                self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - no failure of a save may end training
            if self._given_up:
                return
            self._report(
                CHECKPOINT_FAILED, {"step": save.step, "error": f"{type(error).__name__}: {error}"}
            )
            with self._changed:
                pause_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2**save.failures)
                save.failures += 1
                self._changed.wait_for(lambda: self._closed or self._waiting, pause_s)
                self._waiting = self._waiting or save
                self._writing = None
        else:
            with self._changed:
                self._writing, self._untidy = None, True
                self._changed.notify_all()

    def _write(self, save: _Save) -> None:
        started = time.perf_counter()
        shards = write_shards(self._store, save.folder, self._arenas[save.arena], self._layout)
        manifest = Manifest(
            job=self._job_id,
            generation=self._fence.generation,
            step=save.step,
            created_at_us=save.created_at_us,
            world_size=self._world_size,
            shards=shards,
            tensors=self._layout.tensors,
            state=save.state,
            final=save.final,
        )
        key = f"{save.folder}/MANIFEST.json"
        head = self._fence.commit(manifest, key=key, released=save.released, keep=self._keep)
        write_s = time.perf_counter() - started
        self.cost_s = save.stage_s + write_s
        assert head.current is not None  # noqa: S101 - it was just committed
        self._report(
            CHECKPOINT,
            {
                "step": save.step,
                "manifest": head.current.manifest,
                "digest": head.current.digest,
                "bytes": sum(shard.size for shard in shards),
                "stage_s": round(save.stage_s, 6),
                "write_s": round(write_s, 6),
                "trigger": save.trigger,
                "released": head.released,
                "final": head.final,
            },
        )

    def _tidy(self) -> None:
        self._untidy = False
        try:
            remove_old(
                self._fence,
                self._keep,
                go_on=lambda: not (self._closed or self._waiting),
            )
        except FencedError:
            return  # the next commit says so; nothing was removed
        except Exception as error:  # noqa: BLE001 - housekeeping may not end training either
            head = self._fence.head
            step = head.current.step if head and head.current else 0
            self._report(
                CHECKPOINT_FAILED,
                {"step": step, "error": f"read-back: {type(error).__name__}: {error}"},
            )


def _patiently(read: Callable[[], Manifest]) -> Manifest:
    for attempt in range(READ_ATTEMPTS - 1):
        with contextlib.suppress(StoreUnavailableError):
            return read()
        time.sleep(0.2 * 2**attempt)
    return read()


def check_config(manifest: Manifest, config: Mapping[str, Any]) -> None:
    """Raise MismatchError if the checkpoint was made with another configuration than `config`."""
    made_with = manifest.state.get("config", {})
    for name in sorted(made_with.keys() | config.keys()):
        before, now = made_with.get(name), config.get(name)
        if before != now:
            raise MismatchError(
                f"the checkpoint of step {manifest.step} was made with {name} = {before!r}, this "
                f"program has {now!r}: put it back, or start a new job"
            )


if __name__ == "__main__":
    import sys

    from trainer.compare import main

    sys.exit(main(sys.argv[1:]))
