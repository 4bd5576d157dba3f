"""The saver's work: one snapshot goes out, one may wait, and a newer one takes the place of the one
that waits. What is staged is saved even if the process that staged it is gone. A save that fails is
reported and tried again; it never ends training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from providers.stores.base import NotFoundError, StoreUnavailableError
from spotd.wire import CHECKPOINT, CHECKPOINT_FAILED
from trainer.fence import FencedError
from trainer.hook.spotd_hook.shared_memory import SaveProgress, SharedMemory
from trainer.saver.housekeeping import Housekeeping
from trainer.saver.parts import RankPart, manifest_of, parse_part, part_key
from trainer.saver.rank_upload import RankUpload, SnapshotLabel
from trainer.saver.shard_store import ShardTarget
from trainer.saver.snapshot import Rank, SaverRole, Snapshot, said_of
from trainer.saver.streams import AbandonedError, Filling
from trainer.saver.upload_concurrency import MOST, UploadConcurrency

_LOG = logging.getLogger(__name__)
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 30.0
LOOK_S = 0.05  # whether a newer snapshot is wholly staged, of which nobody tells us
GATHER_POLL_S = 0.2
STILL_S = 60.0  # a local disk that takes no chunk for so long hangs
GATHER_S = 900.0  # a rank that has not put its part by then is gone, or its machine is


class SaveWorker:
    """Threads of its own; close it. `report(kind, data)` takes journal entries and never blocks."""

    def __init__(
        self,
        duties: SaverRole,
        report: Callable[[str, Mapping[str, Any]], None],
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._duties, self._report, self._monotonic = duties, report, monotonic
        self._ranks: dict[int, Rank] = {}
        self._changed = threading.Condition()
        self._waiting: Snapshot | None = None
        self._writing: Snapshot | None = None
        self._stuck: list[Snapshot] = []  # the local disk hangs over it, and has its memory
        self._closed, self._resting, self._drains = False, False, 0
        self._told = SaveProgress()
        self.fenced: FencedError | None = None
        self.committed_step = -1
        self.world_size = duties.world_size
        self._pool, self._lanes = (
            ThreadPoolExecutor(MOST, thread_name_prefix="upload"),
            UploadConcurrency(),
        )
        self._tidying: Housekeeping | None = None
        if duties.fence is not None:
            self._tidying = Housekeeping(
                fence=duties.fence,
                duties=duties,
                changed=self._changed,
                closed=lambda: self._closed,
                may_go_on=self._has_room,
                say=lambda text: self._say_failed(max(self.committed_step, 0), text),
            )
        self._target = ShardTarget(lambda: duties.store, self._say_failed, monotonic)
        self._thread = threading.Thread(target=self._run, name="saving", daemon=True)
        self._thread.start()

    # --- what the ranks say

    def member(self, rank: int) -> Rank | None:
        """A rank that was here, with what its memory still holds."""
        with self._changed:
            return self._ranks.get(rank)

    def join(self, rank: int, member: Rank) -> None:
        """A rank and its memory; one that comes again replaces the one before."""
        with self._changed:
            before = self._ranks.get(rank)
            if before is not None:
                self._abandon_unstaged(rank)
            self._ranks[rank] = member
            self._tell()

    def holding(self, folder: str) -> dict[int, tuple[SharedMemory, int]]:
        """By rank, the memory and slot that have the snapshot below `folder`."""
        with self._changed:
            return {
                rank: (member.arena, slot)
                for rank, member in self._ranks.items()
                for slot, held in member.held.items()
                if held == folder
            }

    def slot_for_fetch(self, rank: int, folder: str, *, whole: bool) -> int:
        """A slot to fetch from what lies below `folder` into: for the `whole` of the rank's stream
        the one that has it, else one that is free, rather one that has it not. Raises ValueError
        when all are being saved."""
        with self._changed:
            held, free = self._ranks[rank].held, self._free_slots(rank)
            has = [slot for slot, kept in held.items() if kept == folder]
            if whole and has:
                return has[0]
            if not free:
                raise ValueError("all memory is being saved: drain first")
            slot = min(free, key=lambda slot: slot in has)
            held.pop(slot, None)
            return slot

    def begin(self, rank: int, label: SnapshotLabel) -> int:
        """The slot that a rank stages this snapshot into; -1 when none is free now. With the first
        rank's call a snapshot that only waits gives way to it."""
        with self._changed:
            if self._closed:
                raise ValueError("HEAD is given away: nothing more is saved")
            waiting = self._waiting
            if waiting is not None and waiting.label.step > label.step:
                return -1  # the other ranks are on to the next already
            if waiting is None or waiting.label.folder != label.folder:
                if waiting is not None:
                    self._abandon(waiting)
                waiting = self._waiting = Snapshot(label)
            free = self._free_slots(rank)
            if not free:
                self._abandon(waiting)
                return -1
            slot, member = free[0], self._ranks[rank]
            member.arena.set_filled(slot, 0)
            member.held.pop(slot, None)
            waiting.slots[rank] = slot
            if len(waiting.slots) == len(self._duties.ranks):
                self._changed.notify_all()
            self._tell()
            return slot

    def lost(self, rank: int, member: Rank) -> None:
        """A rank's process is gone. What it has not wholly staged will never be."""
        with self._changed:
            if self._ranks.get(rank) is member:
                self._abandon_unstaged(rank)

    def drain(self, timeout_s: float, *, alone: bool = False) -> bool:
        """Wait until what is staged is committed; False when it was not: time ran out, we are
        fenced, or it was given up. With `alone` what waits behind what is under way is, now."""
        with self._changed:
            if alone and self._writing is not None and self._waiting is not None:
                self._abandon(self._waiting)
            self._drains += 1
            self._changed.wait_for(
                lambda: self.fenced or self._closed or not self._pending(), timeout_s
            )
            self._drains -= 1
            self._changed.notify_all()
            return not (self.fenced or self._pending())

    def nothing_pending(self) -> bool:
        """Whether all that was staged is committed or given up."""
        with self._changed:
            return not self._pending()

    def give_up(self, timeout_s: float = 0.0) -> bool:
        """What is under way is not to be committed, and nobody hears of it. False while it still
        might be, after so long."""
        with self._changed:
            for snapshot in filter(None, (self._waiting, self._writing)):
                self._abandon(snapshot)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._closed or not self._writing, timeout_s)

    def close(self) -> None:
        """Stop; what is under way is given up."""
        with self._changed:
            self._closed = True
            for snapshot in filter(None, (self._waiting, self._writing)):
                snapshot.abandoned = True
            self._changed.notify_all()

    # --- with the lock held

    def _pending(self) -> bool:
        return self._waiting is not None or self._writing is not None

    def _has_room(self) -> bool:
        """Whether housekeeping may go on: in a pause, also of a save that failed, perhaps for want
        of room; and beside a save for which nobody waits."""
        if self._resting or (self._writing is None and not self._ready()):
            return True
        saves = filter(None, (self._writing, self._waiting))
        return not (self._drains or any(snapshot.label.hurried for snapshot in saves))

    def _free_slots(self, rank: int) -> list[int]:
        member = self._ranks[rank]
        self._stuck = [snapshot for snapshot in self._stuck if not snapshot.ended]
        busy = [s for s in (self._writing, self._waiting, *self._stuck) if s is not None]
        taken = {snapshot.slots.get(rank) for snapshot in busy}
        return [slot for slot in range(member.arena.slots) if slot not in taken]

    def _is_staged(self, snapshot: Snapshot, rank: int) -> bool:
        slot, member = snapshot.slots.get(rank), self._ranks.get(rank)
        if slot is None or member is None:
            return False
        return member.arena.filled(slot) >= member.arena.size

    def _is_whole(self, snapshot: Snapshot) -> bool:
        return all(self._is_staged(snapshot, rank) for rank in self._duties.ranks)

    def _abandon(self, snapshot: Snapshot) -> None:
        snapshot.abandoned = True
        if snapshot is self._waiting:
            self._waiting = None
            self._tell()
            self._changed.notify_all()

    def _abandon_unstaged(self, rank: int) -> None:
        for snapshot in (self._waiting, self._writing):
            if snapshot is not None and not self._is_staged(snapshot, rank):
                self._abandon(snapshot)
        self._changed.notify_all()

    def _tell(self, **changes: int) -> None:
        """Have every rank see how it goes."""
        self._told = replace(
            self._told,
            fenced=self.fenced is not None,
            committed=self.committed_step,
            pending=self._pending(),
            **changes,
        )
        for member in self._ranks.values():
            member.arena.tell(self._told)

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
        return waiting is not None and len(waiting.slots) == len(self._duties.ranks)

    def _save(self, snapshot: Snapshot) -> None:
        """Until it is committed, or nobody wants it any more."""
        try:
            while not self._attempt(snapshot):
                pass
        except AbandonedError:
            pass
        except FencedError as error:
            self.fenced, self._closed = error, True
        else:
            if self._tidying is not None:
                self._tidying.note()
        # Its memory is free when nobody reads it any more, and not before.
        snapshot.abandoned = True
        still = [one for one in snapshot.outgoing.values() if not one.join(STILL_S)]
        if still:
            self._say_local(snapshot, f"it has taken nothing for {STILL_S:g} s; we go on without")
        with self._changed:
            if still:
                self._stuck.append(snapshot)
            self._writing = None
            self._tell(since_us=0, done_ppm=0)
            self._changed.notify_all()

    def _attempt(self, snapshot: Snapshot) -> bool:
        """False when it failed and is to be tried again. Raises AbandonedError, FencedError."""
        try:
            self._write(snapshot)
        except (AbandonedError, FencedError):
            raise
        except Exception as error:  # noqa: BLE001 - no failure of a save may end training
            if snapshot.abandoned:
                raise AbandonedError from None
            if isinstance(error, StoreUnavailableError):
                self._lanes.narrow()
            self._say_failed(snapshot.label.step, f"{type(error).__name__}: {error}")
            if self._tidying:
                self._tidying.note()
            self._rest(snapshot, min(LAST_RETRY_S, FIRST_RETRY_S * 2**snapshot.failures))
            snapshot.failures += 1
            return False
        return True

    def _rest(self, snapshot: Snapshot, pause_s: float) -> None:
        """Before another attempt. Raises AbandonedError when there is none: a newer one is there,
        and wholly so, lest its process dies over it."""
        until = self._monotonic() + pause_s
        with self._changed:
            self._resting = True
            self._changed.notify_all()
            try:
                while (left_s := until - self._monotonic()) > 0:
                    newer = self._waiting is not None and self._is_whole(self._waiting)
                    if newer or self._closed or snapshot.abandoned:
                        raise AbandonedError
                    self._changed.wait(min(left_s, LOOK_S))
            finally:
                self._resting = False

    def _write(self, snapshot: Snapshot) -> None:
        duties, began_s = self._duties, self._monotonic()
        staged = self._is_whole(snapshot)
        with self._changed:
            self._tell(since_us=round(began_s * 1e6))
        if not snapshot.outgoing:
            snapshot.outgoing = {rank: self._start(snapshot, rank) for rank in duties.ranks}
        put = partial(snapshot.put, self._pool, self._lanes.count)
        self._target.put(snapshot.label.step, put, last=snapshot.label.last)
        self._note_held(snapshot)
        if not snapshot.failures:
            self._lanes.note_saved()
        tidying = self._tidying
        if tidying is None:
            for outgoing in snapshot.outgoing.values():
                outgoing.publish(duties.store)
            return
        manifest = manifest_of(duties.job_id, self._gather(snapshot))
        if snapshot.abandoned:
            raise AbandonedError
        key = f"{snapshot.label.folder}/MANIFEST.json"
        keep = max(duties.keep, tidying.reach())
        head = tidying.fence.commit(manifest, key=key, released=snapshot.label.released, keep=keep)
        slots = snapshot.slots.items()
        stage_us = max(self._ranks[rank].arena.staged_us(slot) for rank, slot in slots)
        took_us = round((self._monotonic() - began_s) * 1e6)
        write_us = max(took_us - (0 if staged else stage_us), 0)
        self.committed_step = snapshot.label.step
        if not snapshot.failures:
            puts = len(manifest.shards) + duties.world_size - len(duties.ranks) + 2  # parts, HEAD
            count = self._told.saves + 1
            with self._changed:
                self._tell(saves=count, stage_us=stage_us, write_us=write_us, puts=puts)
        stage_s, write_s = stage_us / 1e6, write_us / 1e6
        self._report(CHECKPOINT, said_of(snapshot, head, manifest, stage_s, write_s))

    def _note_held(self, snapshot: Snapshot) -> None:
        with self._changed:
            for rank, slot in snapshot.slots.items():
                self._ranks[rank].held[slot] = snapshot.label.folder

    def _start(self, snapshot: Snapshot, rank: int) -> RankUpload:
        member, slot = self._ranks[rank], snapshot.slots[rank]

        def told(local_s: float, trouble: str) -> None:
            snapshot.local_s = max(snapshot.local_s, local_s)
            if trouble:
                self._say_local(snapshot, trouble)

        filling = Filling(
            member.arena.padded(slot), lambda: member.arena.filled(slot), lambda: snapshot.abandoned
        )
        return RankUpload(
            snapshot.label,
            rank,
            member.arena.size,
            member.pieces,
            filling,
            None if self._stuck else self._duties.local,
            told,
            lambda: self._note_put(snapshot),
        )

    def _say_local(self, snapshot: Snapshot, trouble: str) -> None:
        self._say_failed(snapshot.label.step, f"local disk: {trouble}")

    def _say_failed(self, step: int, text: str) -> None:
        self._report(CHECKPOINT_FAILED, {"step": step, "error": text})

    def _note_put(self, snapshot: Snapshot) -> None:
        all_of_it = snapshot.outgoing.values()
        put = sum(outgoing.bytes_put for outgoing in all_of_it)
        with self._changed:
            self._tell(done_ppm=put * 1_000_000 // sum(outgoing.size for outgoing in all_of_it))

    def _gather(self, snapshot: Snapshot) -> list[RankPart]:
        """The parts of all ranks: ours, and those of other machines from the bucket. Raises
        StoreError, TimeoutError, AbandonedError, WireError."""
        parts = {rank: outgoing.part() for rank, outgoing in snapshot.outgoing.items()}
        give_up_at = self._monotonic() + GATHER_S
        for rank in range(self._duties.world_size):
            while rank not in parts:
                try:
                    data, _ = self._duties.store.get(part_key(snapshot.label.folder, rank))
                    parts[rank] = parse_part(data)
                except NotFoundError:  # noqa: PERF203 - it waits
                    self._await_part(snapshot, rank, give_up_at)
        return [parts[rank] for rank in sorted(parts)]

    def _await_part(self, snapshot: Snapshot, rank: int, give_up_at: float) -> None:
        if self._monotonic() >= give_up_at:
            raise TimeoutError(f"rank {rank} has not put its part of step {snapshot.label.step}")
        with self._changed:
            if self._changed.wait_for(lambda: self._closed or self._ready(), GATHER_POLL_S):
                raise AbandonedError
