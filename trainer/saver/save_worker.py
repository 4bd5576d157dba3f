"""The upload worker of a saver: one snapshot is uploaded while at most one more waits.

A newer snapshot replaces the one that waits. A staged snapshot is committed even if the process
that staged it is gone. A failed save is reported and retried; it never ends training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from providers.stores.base import NotFoundError, StoreUnavailableError
from spotd.wire import CHECKPOINT, CHECKPOINT_FAILED, HeadRef
from trainer.fence import FencedError
from trainer.hook.spotd_hook.shared_memory import SaveProgress, SharedMemory
from trainer.saver.housekeeping import Housekeeper
from trainer.saver.parts import RankPart, manifest_of, parse_part, part_key
from trainer.saver.rank_upload import MAX_CONCURRENCY, RankUpload, SnapshotLabel, UploadConcurrency
from trainer.saver.retention import pin_results
from trainer.saver.shard_store_choice import ShardStoreChooser
from trainer.saver.snapshot import Rank, SaverRole, Snapshot, commit_entry
from trainer.saver.streams import AbandonedError, FillingSlot

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
POLL_STAGED_S = 0.05  # staging ends without a notification
GATHER_POLL_S = 0.2
DISK_STALL_S = 60.0  # a disk that takes no chunk for this long hangs
GATHER_S = 900.0  # time for other machines to put their parts


class SaveWorker:
    """Uploads and commits snapshots in threads of its own; close it.

    `report(kind, data)` takes journal entries and never blocks.
    """

    def __init__(
        self,
        role: SaverRole,
        report: Callable[[str, Mapping[str, Any]], None],
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._role, self._report, self._monotonic = role, report, monotonic
        self._ranks: dict[int, Rank] = {}
        self._changed = threading.Condition()
        self._waiting: Snapshot | None = None
        self._writing: Snapshot | None = None
        self._pinned: set[HeadRef] = set()  # results of trainings that have ended
        self._stuck: list[Snapshot] = []  # a hanging disk still reads their memory
        self._closed, self._between_attempts, self._drains = False, False, 0
        self._progress = SaveProgress()
        self.fenced: FencedError | None = None
        self.committed_step = -1
        self.world_size = role.world_size
        self._pool = ThreadPoolExecutor(MAX_CONCURRENCY, thread_name_prefix="upload")
        self._concurrency = UploadConcurrency()
        self._housekeeper: Housekeeper | None = None
        if role.fence is not None:
            self._housekeeper = Housekeeper(
                fence=role.fence,
                role=role,
                changed=self._changed,
                closed=lambda: self._closed,
                may_run=self._housekeeping_may_run,
                report=lambda message: self._report_failure(max(self.committed_step, 0), message),
            )
        self._shard_store = ShardStoreChooser(lambda: role.store, self._report_failure, monotonic)
        self._thread = threading.Thread(target=self._run, name="saving", daemon=True)
        self._thread.start()

    # --- called for the ranks

    def member(self, rank: int) -> Rank | None:
        """Return a rank that joined before, with what its memory still holds."""
        with self._changed:
            return self._ranks.get(rank)

    def join(self, rank: int, member: Rank) -> None:
        """Register a rank and its memory, replacing an earlier registration of the same rank."""
        with self._changed:
            before = self._ranks.get(rank)
            if before is not None:
                self._abandon_unstaged(rank)
            self._ranks[rank] = member
            self._publish_progress()

    def slots_holding(self, folder: str) -> dict[int, tuple[SharedMemory, int]]:
        """Return rank -> (memory, slot) of the slots that hold the snapshot at `folder`."""
        with self._changed:
            return {
                rank: (member.memory, slot)
                for rank, member in self._ranks.items()
                for slot, held in member.held.items()
                if held == folder
            }

    def slot_for_fetch(self, rank: int, folder: str, *, whole_stream: bool) -> int:
        """Return the slot into which a rank fetches from the snapshot at `folder`.

        With `whole_stream`, a slot that already holds the snapshot; else a free one, preferably one
        that does not hold it. Raises ValueError if all slots are being saved.
        """
        with self._changed:
            held, free = self._ranks[rank].held, self._free_slots(rank)
            holding = [slot for slot, stored in held.items() if stored == folder]
            if whole_stream and holding:
                return holding[0]
            if not free:
                raise ValueError("all memory is being saved: drain first")
            slot = min(free, key=lambda slot: slot in holding)
            held.pop(slot, None)
            return slot

    def begin(self, rank: int, label: SnapshotLabel) -> int:
        """Return the slot into which a rank stages this snapshot; -1 if none is free.

        The first rank's call abandons a snapshot that only waits.
        """
        with self._changed:
            if self._closed:
                raise ValueError("HEAD is released: nothing more can be saved")
            waiting = self._waiting
            if waiting is not None and waiting.label.step > label.step:
                return -1  # the other ranks have begun a newer one
            if waiting is None or waiting.label.folder != label.folder:
                if waiting is not None:
                    self._abandon(waiting)
                waiting = self._waiting = Snapshot(label)
            free = self._free_slots(rank)
            if not free:
                self._abandon(waiting)
                return -1
            slot, member = free[0], self._ranks[rank]
            member.memory.set_filled(slot, 0)
            member.held.pop(slot, None)
            waiting.slots[rank] = slot
            if len(waiting.slots) == len(self._role.ranks):
                self._changed.notify_all()
            self._publish_progress()
            return slot

    def rank_lost(self, rank: int, member: Rank) -> None:
        """Handle the end of a rank's process: abandon what it has not completely staged."""
        with self._changed:
            if self._ranks.get(rank) is member:
                self._abandon_unstaged(rank)

    def drain(self, timeout_s: float, *, drop_waiting: bool = False) -> bool:
        """Wait until everything staged is committed.

        False if time ran out, another generation owns HEAD, or a snapshot was abandoned. With
        `drop_waiting`, a snapshot that waits behind another one is abandoned at once.
        """
        with self._changed:
            if drop_waiting and self._writing is not None and self._waiting is not None:
                self._abandon(self._waiting)
            self._drains += 1
            self._changed.wait_for(
                lambda: self.fenced or self._closed or not self._pending(), timeout_s
            )
            self._drains -= 1
            self._changed.notify_all()
            return not (self.fenced or self._pending())

    def nothing_pending(self) -> bool:
        """Return whether every staged snapshot is committed or abandoned."""
        with self._changed:
            return not self._pending()

    def abandon(self, timeout_s: float = 0.0) -> bool:
        """Abandon all uncommitted snapshots.

        Returns False if one might still be committed after `timeout_s`.
        """
        with self._changed:
            for snapshot in filter(None, (self._waiting, self._writing)):
                self._abandon(snapshot)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._closed or not self._writing, timeout_s)

    def close(self) -> None:
        """Stop and abandon what is uncommitted."""
        with self._changed:
            self._closed = True
            for snapshot in filter(None, (self._waiting, self._writing)):
                snapshot.abandoned = True
            self._changed.notify_all()

    # --- with the lock held

    def _pending(self) -> bool:
        return self._waiting is not None or self._writing is not None

    def _housekeeping_may_run(self) -> bool:
        """Return whether housekeeping may run.

        It may between saves, while a failed save waits for its retry (it may have lacked space),
        and during a save that nobody waits for.
        """
        if self._between_attempts or (self._writing is None and not self._ready()):
            return True
        saves = filter(None, (self._writing, self._waiting))
        return not (self._drains or any(snapshot.label.is_urgent for snapshot in saves))

    def _free_slots(self, rank: int) -> list[int]:
        member = self._ranks[rank]
        self._stuck = [snapshot for snapshot in self._stuck if not snapshot.ended]
        busy = [s for s in (self._writing, self._waiting, *self._stuck) if s is not None]
        taken = {snapshot.slots.get(rank) for snapshot in busy}
        return [slot for slot in range(member.memory.slots) if slot not in taken]

    def _is_staged(self, snapshot: Snapshot, rank: int) -> bool:
        slot, member = snapshot.slots.get(rank), self._ranks.get(rank)
        if slot is None or member is None:
            return False
        return member.memory.filled(slot) >= member.memory.size

    def _is_fully_staged(self, snapshot: Snapshot) -> bool:
        return all(self._is_staged(snapshot, rank) for rank in self._role.ranks)

    def _abandon(self, snapshot: Snapshot) -> None:
        snapshot.abandoned = True
        if snapshot is self._waiting:
            self._waiting = None
            self._publish_progress()
            self._changed.notify_all()

    def _abandon_unstaged(self, rank: int) -> None:
        for snapshot in (self._waiting, self._writing):
            if snapshot is not None and not self._is_staged(snapshot, rank):
                self._abandon(snapshot)
        self._changed.notify_all()

    def _publish_progress(self, **changes: int) -> None:
        """Show the progress of saving to every rank, in its shared memory."""
        self._progress = replace(
            self._progress,
            fenced=self.fenced is not None,
            committed=self.committed_step,
            pending=self._pending(),
            **changes,
        )
        for member in self._ranks.values():
            member.memory.set_progress(self._progress)

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._ready())
                if self._closed or self._waiting is None:
                    return
                snapshot = self._writing = self._waiting
                self._waiting = None
            self._save(snapshot)

    def _ready(self) -> bool:
        waiting = self._waiting
        return waiting is not None and len(waiting.slots) == len(self._role.ranks)

    def _save(self, snapshot: Snapshot) -> None:
        """Upload until the snapshot is committed or abandoned."""
        try:
            while not self._attempt(snapshot):
                pass
        except AbandonedError:
            pass
        except FencedError as error:
            self.fenced, self._closed = error, True
        else:
            if self._housekeeper is not None:
                self._housekeeper.request()
        # Its memory is free once nothing reads it any more.
        snapshot.abandoned = True
        stuck = [upload for upload in snapshot.uploads.values() if not upload.join(DISK_STALL_S)]
        if stuck:
            self._report_disk_failure(
                snapshot, f"no data was written for {DISK_STALL_S:g} s; saving continues without it"
            )
        with self._changed:
            if stuck:
                self._stuck.append(snapshot)
            self._writing = None
            self._publish_progress(since_us=0, done_ppm=0)
            self._changed.notify_all()

    def _attempt(self, snapshot: Snapshot) -> bool:
        """Return False if it failed and is to be retried. Raises AbandonedError, FencedError."""
        try:
            self._upload_and_commit(snapshot)
        except (AbandonedError, FencedError):
            raise
        except Exception as error:  # noqa: BLE001 - no failure of a save may end training
            if snapshot.abandoned:
                raise AbandonedError from None
            if isinstance(error, StoreUnavailableError):
                self._concurrency.reduce()
            self._report_failure(snapshot.label.step, f"{type(error).__name__}: {error}")
            if self._housekeeper:
                self._housekeeper.request()
            self._wait_before_retry(
                snapshot, min(LAST_RETRY_S, FIRST_RETRY_S * 2**snapshot.failures)
            )
            snapshot.failures += 1
            return False
        return True

    def _wait_before_retry(self, snapshot: Snapshot, pause_s: float) -> None:
        """Wait before the next attempt.

        Raises AbandonedError if a newer snapshot is completely staged, because its process may end.
        """
        until_s = self._monotonic() + pause_s
        with self._changed:
            self._between_attempts = True
            self._changed.notify_all()
            try:
                while (remaining_s := until_s - self._monotonic()) > 0:
                    newer = self._waiting is not None and self._is_fully_staged(self._waiting)
                    if newer or self._closed or snapshot.abandoned:
                        raise AbandonedError
                    self._changed.wait(min(remaining_s, POLL_STAGED_S))
            finally:
                self._between_attempts = False

    def _upload_and_commit(self, snapshot: Snapshot) -> None:
        role, began_s = self._role, self._monotonic()
        staged = self._is_fully_staged(snapshot)
        with self._changed:
            self._publish_progress(since_us=round(began_s * 1e6))
        if not snapshot.uploads:
            snapshot.uploads = {rank: self._start_upload(snapshot, rank) for rank in role.ranks}
        put = partial(snapshot.put, self._pool, self._concurrency.count)
        self._shard_store.put(snapshot.label.step, put, last=snapshot.label.is_last)
        self._record_held(snapshot)
        if not snapshot.failures:
            self._concurrency.add_success()
        housekeeper = self._housekeeper
        if housekeeper is None:
            for upload in snapshot.uploads.values():
                upload.publish(role.store)
            return
        manifest = manifest_of(role.job_id, self._collect_parts(snapshot))
        if snapshot.abandoned:
            raise AbandonedError
        self._pin_results(snapshot.label)
        key = f"{snapshot.label.folder}/MANIFEST.json"
        keep = max(role.keep, housekeeper.required_history())
        head = housekeeper.fence.commit(
            manifest, key=key, released=snapshot.label.released, keep=keep
        )
        slots = snapshot.slots.items()
        stage_us = max(self._ranks[rank].memory.staged_us(slot) for rank, slot in slots)
        took_us = round((self._monotonic() - began_s) * 1e6)
        write_us = max(took_us - (0 if staged else stage_us), 0)
        self.committed_step = snapshot.label.step
        if not snapshot.failures:
            puts = len(manifest.shards) + role.world_size - len(role.ranks) + 2  # parts, HEAD
            count = self._progress.saves + 1
            with self._changed:
                self._publish_progress(saves=count, stage_us=stage_us, write_us=write_us, puts=puts)
        stage_s, write_s = stage_us / 1e6, write_us / 1e6
        self._report(CHECKPOINT, commit_entry(snapshot, head, manifest, stage_s, write_s))

    def _pin_results(self, label: SnapshotLabel) -> None:
        """Pin the results of trainings that have ended, before this snapshot replaces them."""
        role = self._role
        for number, kept in enumerate(label.state.get("ended", ()), 1):
            ref = HeadRef(**kept["ref"])
            if ref not in self._pinned:
                pin_results(role.store, role.job_id, number, str(kept["name"]), ref)
                self._pinned.add(ref)

    def _record_held(self, snapshot: Snapshot) -> None:
        with self._changed:
            for rank, slot in snapshot.slots.items():
                self._ranks[rank].held[slot] = snapshot.label.folder

    def _start_upload(self, snapshot: Snapshot, rank: int) -> RankUpload:
        member, slot = self._ranks[rank], snapshot.slots[rank]

        def on_local(local_s: float, error: str) -> None:
            snapshot.local_s = max(snapshot.local_s, local_s)
            if error:
                self._report_disk_failure(snapshot, error)

        filling = FillingSlot(
            member.memory.padded(slot),
            lambda: member.memory.filled(slot),
            lambda: snapshot.abandoned,
        )
        return RankUpload(
            snapshot.label,
            rank,
            member.memory.size,
            member.pieces,
            filling,
            None if self._stuck else self._role.local,
            on_local,
            lambda: self._publish_upload_progress(snapshot),
        )

    def _report_disk_failure(self, snapshot: Snapshot, message: str) -> None:
        self._report_failure(snapshot.label.step, f"local disk: {message}")

    def _report_failure(self, step: int, message: str) -> None:
        self._report(CHECKPOINT_FAILED, {"step": step, "error": message})

    def _publish_upload_progress(self, snapshot: Snapshot) -> None:
        uploads = snapshot.uploads.values()
        put = sum(upload.bytes_put for upload in uploads)
        with self._changed:
            self._publish_progress(
                done_ppm=put * 1_000_000 // sum(upload.size for upload in uploads)
            )

    def _collect_parts(self, snapshot: Snapshot) -> list[RankPart]:
        """Return the parts of all ranks; those of other machines come from the store.

        Raises StoreError, TimeoutError, AbandonedError, WireError.
        """
        parts = {rank: upload.part() for rank, upload in snapshot.uploads.items()}
        give_up_at_s = self._monotonic() + GATHER_S
        for rank in range(self._role.world_size):
            while rank not in parts:
                try:
                    data, _ = self._role.store.get(part_key(snapshot.label.folder, rank))
                    parts[rank] = parse_part(data)
                except NotFoundError:  # noqa: PERF203 - it waits for each part
                    self._await_part(snapshot, rank, give_up_at_s)
        return [parts[rank] for rank in sorted(parts)]

    def _await_part(self, snapshot: Snapshot, rank: int, give_up_at_s: float) -> None:
        if self._monotonic() >= give_up_at_s:
            raise TimeoutError(f"rank {rank} has not put its part of step {snapshot.label.step}")
        with self._changed:
            if self._changed.wait_for(lambda: self._closed or self._ready(), GATHER_POLL_S):
                raise AbandonedError
