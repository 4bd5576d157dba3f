"""Manage HEAD for a script that does not use our engine: claim, watch, final commit, release.

Before each of these it also syncs the script's checkpoint folder, if the job names one. Everything
here waits for an object store, so it runs in threads, and results are posted to the agent's loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from providers.stores import open_store
from providers.stores.base import StoreError, StoreUnavailableError
from providers.stores.multi_store import MultiStore
from spotd.wire import AgentConfig, Head, Manifest, StartDocument, WireError
from trainer.agent.base.context import AgentContext
from trainer.agent.base.pythons import add_saver_packages
from trainer.agent.base.stop_timing import ENGINE_NONE
from trainer.directory.sync import OPEN_WITHIN_S, DirectorySettings, DirectorySync
from trainer.directory.units import Rules
from trainer.fence import Fence, FencedError, StaleCommitError, read_head
from trainer.saver.reader import CorruptError

_LOG = logging.getLogger(__name__)
POLL_FILE_S = 0.05
POLL_REMOTE_S = 0.2
RETRY_S = 1.0
WATCH_S = 5.0
LAST_SAVE_S = 120.0  # how long a program's failure is not reported while the store is away


class AuthorityListener(Protocol):
    """Receives changes of HEAD; every call comes through `post`."""

    def on_claimed(self, head: Head) -> None:
        """HEAD is ours (or, on another rank of a gang, our rank 0's)."""
        ...

    def on_fenced(self, error: FencedError) -> None:
        """A newer generation owns HEAD."""
        ...

    def on_settled(self, head: Head | None, *, final: bool, size: int = 0) -> None:
        """The final manifest or the release is in HEAD; `head` is None if another rank writes it.

        `size` is that of the final manifest's content, in bytes.
        """
        ...

    def on_saved(self) -> None:
        """The files that a failed program left are saved, as far as they can be."""
        ...

    def on_store_failed(self, text: str) -> None:
        """The store refuses permanently."""
        ...


class EndedError(Exception):
    """The work is no longer needed: the agent ends, or got the order to stop."""


@dataclass
class Authority:
    """One node's access to HEAD. Rank 0 moves it, and the other ranks only read it.

    The store is opened in the threads too, so that a temporary failure ends nothing that runs.
    """

    config: AgentConfig
    start: StartDocument
    listener: AuthorityListener
    post: Callable[[Callable[[], None]], None]
    ended: threading.Event
    now_us: Callable[[], int]
    directory: DirectorySettings | None = None  # the program's folder, if it is to be uploaded
    report: Callable[[str, Mapping[str, Any]], None] = lambda _kind, _data: None
    monotonic: Callable[[], float] = time.monotonic
    home: Path | None = None  # the agent's home

    def __post_init__(self) -> None:
        self._opened: Fence | None = None
        self._opening = threading.Lock()
        local = self.start.storage.store_url.startswith("file:")
        self._poll_s = POLL_FILE_S if local else POLL_REMOTE_S
        self._directory: DirectorySync | None = None
        if self.directory is not None:
            self._directory = DirectorySync(
                self.directory,
                lambda: self._fence,
                self.report,
                pause=self._pause,
                monotonic=self.monotonic,
                now_us=self.now_us,
            )

    @property
    def _fence(self) -> Fence:
        """The fence, opened at its first use. Raises StoreError."""
        with self._opening:
            if self._opened is None:
                if self.home is not None:
                    add_saver_packages(self.home)
                config, start = self.config, self.start
                self._opened = Fence(
                    MultiStore(
                        open_store(start.storage.store_url, start.storage.store_options),
                        {
                            url: partial(open_store, url, options)
                            for url, options in start.storage.others.items()
                        },
                        start.storage.shards_url,
                    ),
                    config.job_id,
                    config.generation,
                    config.token,
                    known_generation=start.head.head_generation,
                    sleep=self._pause,
                )
            return self._opened

    def start_claim(self, claim_terms: Callable[[], tuple[str, float]]) -> None:
        """Wait until HEAD may be claimed, and claim it; `claim_terms` may raise EndedError."""

        def claim() -> None:
            if self.config.rank:
                head = self._wait_for_first_rank()
            else:
                self._fence.wait_claimable(claim_terms, self._poll_s, self._pause, self.monotonic)
                head = self._fence.claim()
                if self._directory is not None and not head.final:
                    self._directory.restore(head)
            self.post(lambda: self.listener.on_claimed(head))

        self._start("claim", claim)

    def start_watch(self) -> None:
        """Check regularly whether a newer generation took HEAD over, and sync the checkpoint
        folder."""

        def watch() -> None:
            while True:
                self._pause(WATCH_S)
                entry = read_head(self._fence.store, self.config.job_id)
                if entry is not None and entry[0].generation > self.config.generation:
                    head = entry[0]
                    raise FencedError(head.generation, self.config.generation, head.owner)

        self._start("watch", watch)
        if self._directory is not None:
            self._start("directory", self._directory.run)

    def start_final(self) -> None:
        """Commit the final manifest, which records the job's success and names its outputs."""

        def commit() -> None:
            if self._directory is not None:
                self._directory.finish()
            head, size = self._fence.head or self._fence.claim(), 0
            if not head.final:
                manifest = self._final_manifest(head)
                head, size = self._fence.commit(manifest), manifest.size
            self.post(lambda: self.listener.on_settled(head, final=True, size=size))

        self._start("final", commit)

    def start_last_save(self) -> None:
        """Save the files that a failed program left in its folder."""

        give_up_s = self.monotonic() + LAST_SAVE_S

        def save() -> None:
            try:
                if self._directory is not None:
                    self._directory.finish(0.0, clean=False)
            except StoreUnavailableError:
                if self.monotonic() < give_up_s:
                    raise
            self.post(self.listener.on_saved)

        self._start("save", save)

    def start_release(self, *, clean: bool = True) -> None:
        """Record in HEAD that this generation has stopped writing; rank 0 does it for the gang.

        `clean` says that the program ended by itself, and so left no file half-written.
        """

        def release() -> None:
            head = None
            if self._directory is not None:
                self._directory.finish(0.0, clean=clean)
            if not self.config.rank:
                # A restarted agent has no claim in memory: claim again as the same generation.
                if self._fence.head is None:
                    self._fence.claim()
                head = self._fence.release()
            self.post(lambda: self.listener.on_settled(head, final=False))

        self._start("release", release)

    def _final_manifest(self, head: Head) -> Manifest:
        """Return the manifest of the job's success, with the content of its last checkpoint."""
        streams, state = self._directory.final_content() if self._directory else ((), {})
        return Manifest(
            job=self.config.job_id,
            generation=self.config.generation,
            step=head.current.step if head.current else 0,
            created_at_us=self.now_us(),
            world_size=self.start.gang.num_nodes,
            streams=streams,
            state=state,
            final=True,
        )

    def _wait_for_first_rank(self) -> Head:
        generation = self.config.generation
        while True:
            entry = read_head(self._fence.store, self.config.job_id)
            if entry is not None and entry[0].generation == generation:
                return entry[0]
            if entry is not None and entry[0].generation > generation:
                raise FencedError(entry[0].generation, generation, entry[0].owner)
            self._pause(self._poll_s)

    def _pause(self, seconds: float) -> None:
        if self.ended.wait(seconds):
            raise EndedError

    def _start(self, name: str, work: Callable[[], None]) -> None:
        threading.Thread(target=self._run, args=(work,), name=f"head-{name}", daemon=True).start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            while not self._try(work):
                self._pause(RETRY_S)
        except EndedError:
            return
        except FencedError as error:
            fenced = error
            self.post(lambda: self.listener.on_fenced(fenced))
        except (StoreError, WireError, CorruptError, ValueError, OSError) as error:
            text = f"the checkpoint store {self.start.storage.store_url!r} cannot be used: {error}"
            self.post(lambda: self.listener.on_store_failed(text))

    def _try(self, work: Callable[[], None]) -> bool:
        """Return False to try again: the store is unavailable, or HEAD has moved."""
        try:
            work()
        except StoreUnavailableError as error:
            _LOG.warning("the checkpoint store does not answer: %s", error)
            return False
        except StaleCommitError:
            return False
        return True


def authority_of(
    context: AgentContext,
    start: StartDocument,
    *,
    listener: AuthorityListener,
    report: Callable[[str, Mapping[str, Any]], None],
) -> Authority | None:
    """Return the authority for a script without our engine; None if the program claims HEAD itself.

    `report(kind, data)` receives the journal entries of its saves.
    """
    if start.checkpoint.engine != ENGINE_NONE or start.program.bake:
        return None
    directory = None
    if start.checkpoint.directory and not context.config.rank:
        directory = DirectorySettings(
            folder=context.paths.in_workdir(start.checkpoint.directory),
            keep=start.checkpoint.keep,
            keep_every_steps=start.checkpoint.keep_every_steps,
            rules=Rules(start.checkpoint.include, start.checkpoint.exclude),
            open_within_s=float(context.environ.get("SPOTD_OPEN_WITHIN_S") or OPEN_WITHIN_S),
        )
    return Authority(
        config=context.config,
        start=start,
        listener=listener,
        post=context.post,
        ended=context.ended,
        now_us=context.now_us,
        directory=directory,
        report=report,
        home=context.paths.home,
    )
