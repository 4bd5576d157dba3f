"""What the desks of a saver share: the work, the right to HEAD, and where the job goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from providers.stores import open_store
from providers.stores.base import ObjectStore
from providers.stores.several import SeveralStores
from spotd.wire import Head, HeadRef, Manifest
from trainer.fence import Fence
from trainer.saver.disk import LocalTier
from trainer.saver.prefetch import Prefetch
from trainer.saver.resume_chain import ResumeChain
from trainer.saver.retention import keep_suspect
from trainer.saver.save_worker import SaveWorker
from trainer.saver.snapshot import SaverRole

READERS = 8  # chunks on their way at once
POLL_FILE_S, POLL_S = 0.05, 0.2
SETTLE_S = 30.0  # for what a process before this one has staged, before its work is gone back from


@dataclass(frozen=True)
class SaverConfig:
    """What a saver is started with. `local` is a folder on this machine's disk (empty: no local
    tier). `suspect` names a manifest that is not to be resumed from, where there is another one.
    `shards` is the URL of the store that shards go to ("": the job's one), `others` the options of
    each store beside that one, by URL, which may have shards."""

    socket: str
    job_id: str
    generation: int
    token: str
    store_url: str
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    head_generation: int = 0
    keep: int = 3
    keep_every_steps: int = 0
    suspect: str = ""
    local: str = ""
    shards: str = ""
    others: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ProgramRanks:
    """The ranks of a training program: how many there are, and which are on this machine."""

    world_size: int
    ranks: tuple[int, ...]


class _NotYetError(Exception):
    """HEAD may not be claimed within the time that its asker waits."""


class SaverService:
    """One for the whole saver. `report(kind, data)` takes journal entries and never blocks."""

    def __init__(
        self,
        config: SaverConfig,
        report: Callable[[str, Mapping[str, Any]], None],
        *,
        open_store: Callable[[str, Mapping[str, str]], ObjectStore] = open_store,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.report = config, report
        self._open_store = open_store
        self._monotonic = monotonic
        self._ended = threading.Event()
        self._settle_by = 0.0
        self.readers = ThreadPoolExecutor(READERS, thread_name_prefix="read")
        self.local = LocalTier(Path(config.local)) if config.local else None
        self._lock, self._gathering = threading.Lock(), threading.Lock()
        self._store: ObjectStore | None = None
        self._fence: Fence | None = None
        self._saving: SaveWorker | None = None
        self._team: ProgramRanks | None = None
        self._chain: ResumeChain | None = None
        self.found: tuple[HeadRef, Manifest] | None = None
        self.prefetch: Prefetch | None = None

    @property
    def store(self) -> ObjectStore:
        """The job's, with those beside it that have shards. Raises StoreError: what ails it for a
        while ends nothing."""
        if self._store is None:
            config = self.config
            self._store = SeveralStores(
                self._open_store(config.store_url, config.store_options),
                {url: partial(self._open_store, url, has) for url, has in config.others.items()},
                config.shards,
            )
        return self._store

    @property
    def fence(self) -> Fence:
        """The right to HEAD; of one who asks for it on the first rank's machine."""
        with self._lock:
            if self._fence is None:
                self._fence = self._make_fence(self.store)
            return self._fence

    def _make_fence(self, store: ObjectStore) -> Fence:
        config = self.config
        return Fence(
            store,
            config.job_id,
            config.generation,
            config.token,
            known_generation=config.head_generation,
        )

    def begin_prefetch(self, claim_of: Callable[[], tuple[str, float]], nodes: int = 1) -> None:
        """Have the newest checkpoint here when the program asks for it; on the first of `nodes`
        machines. `claim_of` is as for `Fence.wait_claimable`."""
        self.prefetch = Prefetch(
            lambda: self.store,
            self._make_fence,
            claim_of,
            self.readers,
            nodes=nodes,
            suspect=self.config.suspect,
        )

    def end_prefetch(self) -> None:
        """What was prefetched and nobody took is dropped."""
        prefetch, self.prefetch = self.prefetch, None
        if prefetch is not None:
            prefetch.drop()

    @property
    def chain(self) -> ResumeChain:
        """Where `look_back` looks. Raises ValueError before that."""
        if self._chain is None:
            raise ValueError("nobody has asked yet where to go on")
        return self._chain

    @property
    def saving(self) -> SaveWorker:
        """Raises ValueError before anybody has joined."""
        if self._saving is None:
            raise ValueError("nobody has joined yet")
        return self._saving

    def gather(self, team: ProgramRanks) -> SaveWorker:
        """The work for these ranks. Another team than before is a program that was started again:
        what the one before has staged is saved first. Of ranks that come at once one makes it."""
        with self._gathering:
            return self._gather(team)

    def _gather(self, team: ProgramRanks) -> SaveWorker:
        fence = self.fence if 0 in team.ranks else None
        with self._lock:
            before = self._saving
            self._settle_by = self._monotonic() + SETTLE_S
            if before is not None and team == self._team:
                return before
        if before is not None:
            before.drain(SETTLE_S)
            before.close()
        config = self.config
        duties = SaverRole(
            self.store,
            config.job_id,
            config.generation,
            team.world_size,
            team.ranks,
            config.keep,
            fence,
            self.local,
            config.keep_every_steps,
        )
        with self._lock:
            self._team = team
            self._saving = SaveWorker(duties, self.report, monotonic=self._monotonic)
            return self._saving

    def wait_to_settle(self) -> None:
        """A program begins again, and has no memory of its own yet: what the one before has staged
        gets its time."""
        self._settle_by = self._monotonic() + SETTLE_S

    def claim(self, claim: str, left_s: float, wait_s: float) -> Head | None:
        """Take HEAD, when it may be had within `wait_s`. Before that, what was staged by a process
        before this one is committed, or given up: none of it may come after the resume point is
        read. Raises FencedError, HeadLostError, StoreError."""
        asked_at = self._monotonic()
        until = asked_at + wait_s
        if self._saving is not None and not self._saving.fenced:
            patience_s = min(wait_s, self._settle_by - asked_at)
            if patience_s > 0 and not self._saving.drain(patience_s):
                return None
            if not self._saving.give_up(wait_s):
                return None

        def pause(seconds: float) -> None:
            if self._monotonic() >= until:
                raise _NotYetError
            if self._ended.wait(seconds):
                raise InterruptedError("the saver ends")

        fence = self.fence
        poll_s = POLL_FILE_S if self.config.store_url.startswith("file:") else POLL_S
        with suppress(_NotYetError):
            fence.wait_claimable(
                lambda: (claim, left_s - (self._monotonic() - asked_at)),
                poll_s,
                pause,
                self._monotonic,
            )
            return fence.claim()
        return None

    def settle(self) -> None:
        """Nothing that is staged is under way any more. Raises TimeoutError."""
        saving = self._saving
        if saving is not None and not (saving.drain(SETTLE_S) or saving.give_up(SETTLE_S)):
            raise TimeoutError("a snapshot is under way, and the store does not answer")

    def look_back(self, back: int, most_step: int | None) -> None:
        """Have `chain` begin at HEAD as it is now. Raises ValueError before the claim."""
        head = self.fence.head
        if head is None:
            raise ValueError("HEAD was not claimed")
        suspect = self.config.suspect
        keep_suspect(self.store, head, suspect)
        self._chain = ResumeChain(
            self.store, head, self.report, back=back, most_step=most_step, suspect=suspect
        )

    def release(self) -> Head:
        """Give HEAD away, without what is still under way. Raises FencedError, StoreError."""
        if self._saving is not None:
            self._saving.give_up()
            self._saving.close()
        return self.fence.release()

    def drain(self, timeout_s: float) -> bool:
        """Wait until what is staged is committed; False when it is not."""
        return self._saving is None or self._saving.drain(timeout_s)

    def close(self) -> None:
        """Give up what is under way."""
        self._ended.set()
        self.end_prefetch()
        if self._saving is not None:
            self._saving.close()
