"""Fencing of checkpoint writers: the protocol around a job's `HEAD` object.

`HEAD` is one small object that is only moved by compare-and-swap. A generation *claims* it before
it reads where to resume. After that every older writer holds an outdated version tag, so its
commits fail no matter how long it lives. A commit writes the manifest under a new key and then
moves `HEAD` to it; a manifest that `HEAD` never named was not committed.

A conditional write may succeed although its response is lost. Every version of `HEAD` has a fresh
nonce, and a writer remembers the nonces it sent, so that on reading back it recognizes its own
write.

Standard library only, Python >= 3.10, because the node agent runs this too.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from providers.stores.base import (
    ConflictError,
    NotFoundError,
    ObjectStore,
    StoreError,
    StoreUnavailableError,
)
from spotd.wire import (
    CLAIM_NOW,
    Head,
    HeadRef,
    Manifest,
    head_key,
    manifest_key,
    parse_head,
    sha256,
)

PREDECESSORS = 8  # HEAD lists at least this many previous checkpoints
ATTEMPTS = 6
FIRST_PAUSE_S = 0.05


class HeadLostError(StoreError):
    """HEAD is missing or older than it once was: this is not the job's store, or it lost data."""


class FencedError(Exception):
    """Another writer owns HEAD, so this one must stop. `head_generation` is the owner's."""

    def __init__(self, head_generation: int, ours: int, owner: str) -> None:
        super().__init__(
            f"generation {ours} is fenced: HEAD belongs to generation {head_generation} "
            f"(owner {owner!r}); this process must stop"
        )
        self.head_generation = head_generation


class StaleCommitError(ValueError):
    """The commit may not follow an earlier write of this writer that landed late.

    The outcome of the earlier write had been unknown. `Fence.head` is HEAD with that write.
    """


def read_head(store: ObjectStore, job_id: str) -> tuple[Head, str] | None:
    """HEAD and its version tag; None if the job was never claimed. Raises WireError, StoreError."""
    try:
        data, tag = store.get(head_key(job_id))
    except NotFoundError:
        return None
    return parse_head(data), tag


class Fence:
    """One writer of a job's checkpoints: `claim`, then `commit`s, then possibly `release`.

    `owner` is the node's token. Every call may raise FencedError, after which all calls raise it,
    and StoreError; after StoreUnavailableError the call may be repeated. Thread-safe.

    `known_generation` is the newest generation that HEAD is known to have had (0: none). Claiming a
    HEAD that is missing or older raises HeadLostError because starting over would discard the job's
    work.
    """

    def __init__(
        self,
        store: ObjectStore,
        job_id: str,
        generation: int,
        owner: str,
        *,
        known_generation: int = 0,
        make_nonce: Callable[[], str] = lambda: secrets.token_hex(8),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store
        self.job_id = job_id
        self.generation = generation
        self.owner = owner
        self._known_generation = known_generation
        self._make_nonce = make_nonce
        self._sleep = sleep
        self._head: Head | None = None
        self._tag: str | None = None
        # Nonces of the versions we tried to write, and the checkpoint that the next commit follows.
        self._sent: dict[str, HeadRef | None] = {}
        self._fenced: FencedError | None = None
        self._claimed_seq = 0
        self._lock = threading.Lock()

    @property
    def head(self) -> Head | None:
        """HEAD as last moved by this writer; None before the claim."""
        return self._head

    @property
    def claimed_seq(self) -> int:
        """The sequence number of HEAD that our latest claim wrote.

        A writer may resume from an older checkpoint than HEAD's current one, so until its first
        commit after a claim it is open which of HEAD's checkpoints are its history.
        """
        return self._claimed_seq

    def check(self) -> None:
        """Check that HEAD in the store is still ours and not older than `head`.

        May be called during a commit. Raises FencedError, StoreError.
        """
        known, entry = self._require_head(), read_head(self.store, self.job_id)
        if entry is None:
            raise FencedError(0, self.generation, "nobody: HEAD is gone")
        head = entry[0]
        if head.nonce not in self._sent or head.seq < known.seq:
            raise FencedError(head.generation, self.generation, head.owner)

    def claim(self) -> Head:
        """Claim HEAD for our generation; the returned Head has the resume point.

        The same owner may claim again, which fences its earlier process. The HEAD of a finished job
        stays `final`, and the caller must check for that.
        """
        with self._lock:
            self._check_not_fenced()
            head = self._move(self._claimed, claiming=True)
            self._claimed_seq = head.seq  # before `_head`, for readers of both without the lock
            self._head = head
            return head

    def resume_from(self, ref: HeadRef | None) -> None:
        """Record which of HEAD's checkpoints was restored, if newer ones were unusable.

        The next commit follows it, which drops the unusable ones from the chain. Raises ValueError
        if it is not in the chain.
        """
        head = self._require_head()
        if ref not in (None, head.current, *head.previous):
            raise ValueError(f"{ref} is not in the chain of HEAD")
        self._sent[head.nonce] = ref

    def commit(
        self, manifest: Manifest, *, key: str = "", released: bool = False, keep: int = 0
    ) -> Head:
        """Write the manifest and move HEAD to it. `released` marks it as our last commit.

        `key` is the manifest's key, used by no other save; by default a new one. HEAD lists the
        latest `keep` checkpoints including this one, but at least 1 + PREDECESSORS. Repeating the
        last commit is harmless.

        Raises ValueError for a manifest of another job or generation, for a step before that of the
        checkpoint it follows, and for any commit after release or the final manifest; the
        subclass StaleCommitError if this shows only while HEAD is moved.
        """
        with self._lock:
            head = self._require_head()
            if (manifest.job, manifest.generation) != (self.job_id, self.generation):
                raise ValueError("the manifest is of another job or generation")
            if head.released or head.final:
                raise ValueError("nothing can be committed after release or the final manifest")
            base = self._sent[head.nonce]
            if base is not None and manifest.step < base.step:
                raise ValueError(f"step {manifest.step} lies before step {base.step}")
            key = key or manifest_key(
                self.job_id, self.generation, manifest.step, self._make_nonce()
            )
            data = manifest.to_bytes()
            self._create(key, data)
            ref = HeadRef(self.generation, manifest.step, key, sha256(data))

            def committed(head: Head | None) -> Head:
                assert head is not None  # noqa: S101 - `_move` checked that it is ours
                base = self._sent[head.nonce]
                if head.released or head.final:
                    raise StaleCommitError("HEAD was released, or the job finished, meanwhile")
                if base is not None and ref.step < base.step:
                    raise StaleCommitError(f"step {ref.step} lies before step {base.step}")
                return replace(
                    head,
                    current=ref,
                    previous=_chain(head, base)[: max(PREDECESSORS, keep - 1)],
                    released=released or manifest.final,
                    final=manifest.final,
                )

            try:
                self._head = self._move(committed)
            except StaleCommitError:
                # An earlier attempt of this same call landed late: it is done.
                if not _is_committed(
                    self._require_head(), ref, released=released, final=manifest.final
                ):
                    raise
            return self._require_head()

    def release(self) -> Head:
        """Mark HEAD as released: this writer will commit no more. Idempotent."""
        with self._lock:
            head = self._require_head()
            if not head.released:
                self._head = self._move(_released)
            return self._require_head()

    def finish(self) -> Head:
        """Record that the job is done with the checkpoint that HEAD has. Idempotent."""
        with self._lock:
            head = self._require_head()
            if not head.final:
                self._head = self._move(_finished)
            return self._require_head()

    def _check_not_fenced(self) -> None:
        if self._fenced is not None:
            raise self._fenced

    def _require_head(self) -> Head:
        self._check_not_fenced()
        if self._head is None:
            raise ValueError("HEAD was not claimed: call claim() first")
        return self._head

    def _claimed(self, head: Head | None) -> Head:
        if head is None:
            head = Head(self.job_id, self.generation, 0, "", self.owner)
        return replace(head, generation=self.generation, owner=self.owner, released=False)

    def _move(self, change: Callable[[Head | None], Head], *, claiming: bool = False) -> Head:
        """Compare-and-swap HEAD to `change(HEAD)`, retrying until the outcome is known.

        Retries against the same version send the same bytes. Raises StoreUnavailableError after
        ATTEMPTS.
        """
        tag = self._tag
        new = None if claiming else self._stamped(change, self._head)
        trouble: StoreError | None = None
        for attempt in range(ATTEMPTS):
            if attempt > 1 or isinstance(trouble, StoreUnavailableError):
                self._sleep(FIRST_PAUSE_S * 2**attempt)
            try:
                if trouble or new is None:
                    stored, stored_tag = self._read_movable(claiming=claiming)
                    if new and stored and stored.nonce == new.nonce:
                        self._tag = stored_tag
                        return new
                    if new is None or stored_tag != tag:
                        # An earlier write of ours landed late, or an older writer was faster.
                        if not claiming:
                            self._head, self._tag = stored, stored_tag
                        tag, new = stored_tag, self._stamped(change, stored)
                self._tag = self.store.put_if(head_key(self.job_id), new.to_bytes(), tag)
            except (ConflictError, StoreUnavailableError) as error:
                trouble = error
            else:
                return new
        raise StoreUnavailableError(f"HEAD of job {self.job_id} could not be moved: {trouble}")

    def _read_movable(self, *, claiming: bool) -> tuple[Head | None, str | None]:
        """Read HEAD and its tag. Raises FencedError if we may not move it, HeadLostError."""
        entry = read_head(self.store, self.job_id)
        if claiming:
            self._check_known(entry)
        if entry is None:
            if claiming and self._head is None:
                return None, None
            raise self._fence_off(0, "nobody: HEAD is gone")
        head, tag = entry
        owned = (head.generation, head.owner) == (self.generation, self.owner)
        if claiming:
            allowed = owned or head.generation < self.generation
        else:
            allowed = owned and head.nonce in self._sent
        if not allowed:
            raise self._fence_off(head.generation, head.owner)
        return head, tag

    def _check_known(self, entry: tuple[Head, str] | None) -> None:
        """Raises HeadLostError."""
        generation = 0 if entry is None else entry[0].generation
        if generation >= self._known_generation:
            return
        state = "is missing" if entry is None else f"is of generation {generation}"
        raise HeadLostError(
            f"HEAD of job {self.job_id} {state} in {self.store.url}, though generation "
            f"{self._known_generation} had it: put the store back, or start a new job"
        )

    def _fence_off(self, generation: int, owner: str) -> FencedError:
        self._fenced = FencedError(generation, self.generation, owner)
        return self._fenced

    def _stamped(self, change: Callable[[Head | None], Head], old: Head | None) -> Head:
        seq = 1 if old is None else old.seq + 1
        new = replace(change(old), seq=seq, nonce=self._make_nonce())
        self._sent[new.nonce] = new.current
        return new

    def _create(self, key: str, data: bytes) -> None:
        """Create an object; retried until the outcome is known. Raises ValueError if it exists with
        other content."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(FIRST_PAUSE_S * 2**attempt)
            trouble = self._try_create(key, data)
            if trouble is None:
                return
        raise StoreUnavailableError(f"{key} could not be written: {trouble}")

    def _try_create(self, key: str, data: bytes) -> StoreError | None:
        try:
            self.store.put_if(key, data, None)
        except ConflictError:
            if self.store.get(key)[0] != data:
                raise ValueError(f"{key} exists with other content") from None
        except StoreUnavailableError as error:
            return error
        return None

    def wait_claimable(
        self,
        claim_of: Callable[[], tuple[str, float]],
        poll_s: float,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> str:
        """Wait until HEAD may be claimed; return the reason: now, ours, released or deadline.

        `claim_of()` returns the daemon's current claim mode, and the seconds until HEAD may be
        taken from an owner that has not released it. Waiting preserves the owner's last work;
        safety does not depend on it. An unclaimed HEAD is not taken early either, because its owner
        may be about to claim it. Raises FencedError, HeadLostError.
        """
        while True:
            read_at = monotonic()
            claim, left_s = claim_of()
            if claim == CLAIM_NOW:
                return "now"
            try:
                entry = read_head(self.store, self.job_id)
            except StoreUnavailableError:
                entry = None  # an unavailable store is not a reason to claim early
            else:
                reason = self._claimable(entry)
                if reason:
                    return reason
            left_s -= monotonic() - read_at
            if left_s <= 0:
                return "deadline"
            sleep(min(poll_s, left_s))

    def _claimable(self, entry: tuple[Head, str] | None) -> str:
        self._check_known(entry)
        if entry is None:
            return ""
        head = entry[0]
        if (head.generation, head.owner) == (self.generation, self.owner):
            return "ours"
        if head.generation >= self.generation:
            raise self._fence_off(head.generation, head.owner)
        return "released" if head.released or head.final else ""


def _released(head: Head | None) -> Head:
    assert head is not None  # noqa: S101 - `_move` checked that it is ours
    return replace(head, released=True)


def _finished(head: Head | None) -> Head:
    assert head is not None  # noqa: S101 - `_move` checked that it is ours
    return replace(head, released=True, final=True)


def _is_committed(head: Head, ref: HeadRef, *, released: bool, final: bool) -> bool:
    """Whether HEAD has this checkpoint (under any key) with the same released and final flags."""
    current = head.current
    return (
        current is not None
        and (current.generation, current.digest) == (ref.generation, ref.digest)
        and (head.released, head.final) == (released or final, final)
    )


def _chain(head: Head, base: HeadRef | None) -> tuple[HeadRef, ...]:
    """HEAD's checkpoints from `base` on, newest first; none if it does not list `base`."""
    refs = (head.current, *head.previous)
    return tuple(ref for ref in refs[refs.index(base) :] if ref) if base in refs else ()
