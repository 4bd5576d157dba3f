"""State shared by all sessions of a saver: stores, the right to HEAD, worker and resume point."""

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
from providers.stores.multi_store import MultiStore
from spotd.wire import CHECKPOINT, Head, HeadRef, Manifest
from trainer.fence import Fence
from trainer.saver.disk import LocalTier
from trainer.saver.prefetch import Prefetch
from trainer.saver.reader import read_manifest
from trainer.saver.resume_chain import ResumeChain
from trainer.saver.retention import pin_suspect
from trainer.saver.save_worker import SaveWorker
from trainer.saver.snapshot import SaverRole, finish_entry

READERS = 8  # chunks read in parallel
POLL_FILE_S, POLL_S = 0.05, 0.2
SETTLE_S = 30.0  # for snapshots of a previous process, before they are abandoned


@dataclass(frozen=True)
class SaverConfig:
    """The configuration of a saver.

    `local` is a folder on this machine's disk ("": no local tier). `suspect` names a manifest to
    avoid on resume if there is another one. `shards` is the URL of the store for shards ("": the
    job's store), and `others` maps the URLs of further stores that may have shards to their
    options.
    """

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
    """The ranks of a training program: their number, and which ones run on this machine."""

    world_size: int
    ranks: tuple[int, ...]


class _NotYetError(Exception):
    """HEAD cannot be claimed within the time that the requester waits."""


class SaverService:
    """The state of one saver. `report(kind, data)` takes journal entries and never blocks."""

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
        self._settle_until_s = 0.0
        self.readers = ThreadPoolExecutor(READERS, thread_name_prefix="read")
        self.local = LocalTier(Path(config.local)) if config.local else None
        self._lock, self._worker_lock = threading.Lock(), threading.Lock()
        self._store: ObjectStore | None = None
        self._fence: Fence | None = None
        self._worker: SaveWorker | None = None
        self._program: ProgramRanks | None = None
        self._chain: ResumeChain | None = None
        self.resume_point: tuple[HeadRef, Manifest] | None = None
        self.prefetch: Prefetch | None = None

    @property
    def store(self) -> ObjectStore:
        """The job's store and those beside it. Raises StoreError; failures are not cached."""
        if self._store is None:
            config = self.config
            self._store = MultiStore(
                self._open_store(config.store_url, config.store_options),
                {
                    url: partial(self._open_store, url, options)
                    for url, options in config.others.items()
                },
                config.shards,
            )
        return self._store

    @property
    def fence(self) -> Fence:
        """The right to HEAD, created on first use; only the saver of rank 0 uses it."""
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

    def start_prefetch(
        self, current_claim: Callable[[], tuple[str, float]], nodes: int = 1
    ) -> None:
        """Start to prefetch the newest checkpoint, on the first of `nodes` machines.

        `current_claim` is as for `Fence.wait_claimable`.
        """
        self.prefetch = Prefetch(
            lambda: self.store,
            self._make_fence,
            current_claim,
            self.readers,
            nodes=nodes,
            suspect=self.config.suspect,
        )

    def drop_prefetch(self) -> None:
        """Drop prefetched data that no rank has taken."""
        prefetch, self.prefetch = self.prefetch, None
        if prefetch is not None:
            prefetch.drop()

    @property
    def chain(self) -> ResumeChain:
        """The chain made by `start_resume_chain`. Raises ValueError before that."""
        if self._chain is None:
            raise ValueError("there is no resume point to skip: resume first")
        return self._chain

    @property
    def worker(self) -> SaveWorker:
        """Raises ValueError before any rank has joined."""
        if self._worker is None:
            raise ValueError("no rank has joined yet: join first")
        return self._worker

    def worker_for(self, program: ProgramRanks) -> SaveWorker:
        """Return the worker for these ranks; ranks that join at the same time share it.

        Other ranks than before mean that the program was restarted; what the previous one staged is
        saved first.
        """
        with self._worker_lock:
            return self._collect_parts(program)

    def _collect_parts(self, program: ProgramRanks) -> SaveWorker:
        fence = self.fence if 0 in program.ranks else None
        with self._lock:
            previous = self._worker
            self._settle_until_s = self._monotonic() + SETTLE_S
            if previous is not None and program == self._program:
                return previous
        if previous is not None:
            previous.drain(SETTLE_S)
            previous.close()
        config = self.config
        role = SaverRole(
            self.store,
            config.job_id,
            config.generation,
            program.world_size,
            program.ranks,
            config.keep,
            fence,
            self.local,
            config.keep_every_steps,
        )
        with self._lock:
            self._program = program
            self._worker = SaveWorker(role, self.report, monotonic=self._monotonic)
            return self._worker

    def extend_settle_time(self) -> None:
        """Give a restarted program's earlier snapshots time to be committed."""
        self._settle_until_s = self._monotonic() + SETTLE_S

    def claim(self, claim: str, remaining_s: float, wait_s: float) -> Head | None:
        """Claim HEAD if that is possible within `wait_s`; otherwise return None.

        Snapshots staged by an earlier process are committed or abandoned first: none may be
        committed after the resume point is read. Raises FencedError, HeadLostError, StoreError.
        """
        requested_at_s = self._monotonic()
        until_s = requested_at_s + wait_s
        if self._worker is not None and not self._worker.fenced:
            patience_s = min(wait_s, self._settle_until_s - requested_at_s)
            if patience_s > 0 and not self._worker.drain(patience_s):
                return None
            if not self._worker.abandon(wait_s):
                return None

        def pause(seconds: float) -> None:
            if self._monotonic() >= until_s:
                raise _NotYetError
            if self._ended.wait(seconds):
                raise InterruptedError("the saver ends")

        fence = self.fence
        poll_s = POLL_FILE_S if self.config.store_url.startswith("file:") else POLL_S
        with suppress(_NotYetError):
            fence.wait_claimable(
                lambda: (claim, remaining_s - (self._monotonic() - requested_at_s)),
                poll_s,
                pause,
                self._monotonic,
            )
            return fence.claim()
        return None

    def wait_until_idle(self) -> None:
        """Wait until no staged snapshot is in progress. Raises TimeoutError."""
        worker = self._worker
        if worker is not None and not (worker.drain(SETTLE_S) or worker.abandon(SETTLE_S)):
            raise TimeoutError("a snapshot is under way, and the store does not answer")

    def start_resume_chain(self, back: int, most_step: int | None) -> None:
        """Make `chain` from the present HEAD. Raises ValueError before the claim."""
        head = self.fence.head
        if head is None:
            raise ValueError("HEAD was not claimed")
        suspect = self.config.suspect
        pin_suspect(self.store, head, suspect)
        self._chain = ResumeChain(
            self.store, head, self.report, back=back, most_step=most_step, suspect=suspect
        )

    def release(self) -> Head:
        """Release HEAD and abandon what is uncommitted. Raises FencedError, StoreError."""
        if self._worker is not None:
            self._worker.abandon()
            self._worker.close()
        return self.fence.release()

    def finish_job(self) -> bool:
        """Record in HEAD that the job is done; False if it is not, or HEAD is not ours.

        It is done if HEAD's checkpoint has the results of a training that has ended. Nothing can be
        saved afterwards. Raises FencedError, StoreError, CorruptError, WireError.
        """
        head = None if self._fence is None else self._fence.head
        if self._fence is None or head is None or head.current is None or head.released:
            return False
        manifest = read_manifest(self.store, head.current)
        if head.final or not manifest.state.get("training", {}).get("ended"):
            return head.final
        if self._worker is not None:
            self._worker.close()
        head = self._fence.finish()
        self.report(CHECKPOINT, finish_entry(head, manifest))
        return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything staged is committed; False if it is not."""
        return self._worker is None or self._worker.drain(timeout_s)

    def close(self) -> None:
        """Abandon what is uncommitted."""
        self._ended.set()
        self.drop_prefetch()
        if self._worker is not None:
            self._worker.close()
