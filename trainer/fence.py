"""Who may write a job's checkpoints: the protocol around `HEAD`.

`HEAD` is one small object, moved by compare-and-swap only. A generation *claims* it before it reads
where to resume; from then on every older writer holds a version that is gone, so that its commits
fail, however long it lives. A commit writes the manifest under a key of its own and then moves
`HEAD` to it; what `HEAD` does not name was never committed.

A conditional write may succeed and its answer be lost. Every version carries a fresh nonce, and we
remember the nonces that we have sent: reading back tells our own write from a stranger's.

Standard library only, Python >= 3.10: the node agent runs this too.
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

PREDECESSORS = 8  # how far back HEAD remembers at least
ATTEMPTS = 6
FIRST_PAUSE_S = 0.05


class HeadLostError(StoreError):
    """HEAD is missing, or older than it is known to have been: this is not the job's store."""


class FencedError(Exception):
    """Another writer owns HEAD: stop, write nothing more. `head_generation` is the owner's."""

    def __init__(self, head_generation: int, ours: int, owner: str) -> None:
        super().__init__(
            f"generation {ours} is fenced: HEAD belongs to generation {head_generation} "
            f"(owner {owner!r}); this process must stop"
        )
        self.head_generation = head_generation


class StaleCommitError(ValueError):
    """An earlier write of this writer, whose outcome was unknown, landed while a later commit was
    under way, and that commit may not follow it. `Fence.head` is HEAD with the earlier write."""


def read_head(store: ObjectStore, job_id: str) -> tuple[Head, str] | None:
    """HEAD and its version tag, or None when nobody has claimed the job yet. Raises WireError."""
    try:
        data, tag = store.get(head_key(job_id))
    except NotFoundError:
        return None
    return parse_head(data), tag


class Fence:
    """One writer's hold on a job: `claim`, then `commit`s, then perhaps `release`.

    `owner` is the node's token. Every call may raise FencedError, and then always will, and the
    store's errors; after StoreUnavailableError the same call may be made again. Safe to use from
    several threads.

    `known_generation` is the newest that HEAD is known to have had (0: none). A claim of a HEAD
    that is missing or older raises HeadLostError: to start afresh would throw the job's work away.
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
        # Every version that we tried to write, and the checkpoint that it stands on.
        self._sent: dict[str, HeadRef | None] = {}
        self._fenced: FencedError | None = None
        self._claimed_seq = 0
        self._lock = threading.Lock()

    @property
    def head(self) -> Head | None:
        """HEAD as this writer last moved it; None before the claim."""
        return self._head

    @property
    def claimed_seq(self) -> int:
        """The number of HEAD that our newest claim wrote. Whoever claims may go on from an older
        checkpoint: until the next commit nobody knows which of HEAD's are its past."""
        return self._claimed_seq

    def check(self) -> None:
        """Raises FencedError unless HEAD, as it is in the store, is one that we wrote and no older
        than `head`; and store errors. A commit may be under way."""
        known, entry = self._held(), read_head(self.store, self.job_id)
        if entry is None:
            raise FencedError(0, self.generation, "nobody: HEAD is gone")
        found = entry[0]
        if found.nonce not in self._sent or found.seq < known.seq:
            raise FencedError(found.generation, self.generation, found.owner)

    def claim(self) -> Head:
        """Take HEAD for our generation; the resume point is in the returned Head.

        Claiming again with the same owner works and shuts out the earlier process of that owner. A
        finished job stays `final`: the caller looks at it and goes home.
        """
        with self._lock:
            self._alive()
            head = self._move(self._claimed, claiming=True)
            self._claimed_seq = head.seq  # first, for those who look at both without the lock
            self._head = head
            return head

    def resume_from(self, ref: HeadRef | None) -> None:
        """Say which of HEAD's checkpoints was restored, when the newer ones were not usable.

        The next commit is chained behind it, so that unusable ones leave the chain.
        """
        head = self._held()
        if ref not in (None, head.current, *head.previous):
            raise ValueError(f"{ref} is not in the chain of HEAD")
        self._sent[head.nonce] = ref

    def commit(
        self, manifest: Manifest, *, key: str = "", released: bool = False, keep: int = 0
    ) -> Head:
        """Write the manifest, then move HEAD to it; `released` says that it is our last.

        `key` is where the manifest goes (default: a fresh one); it must be one that no other save
        uses. HEAD remembers `keep` checkpoints, this one included, and some even if fewer are kept.
        A commit that HEAD already names as released or final is not repeated. Raises ValueError for
        a manifest of another job or generation, for one whose step lies before the checkpoint that
        it follows, and for any after release or the final manifest; StaleCommitError where that
        comes to light only when HEAD is moved.
        """
        with self._lock:
            head = self._held()
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

            def committed(found: Head | None) -> Head:
                assert found is not None  # noqa: S101 - `_move` checked that it is ours
                base = self._sent[found.nonce]
                if found.released or found.final:
                    raise StaleCommitError("HEAD was released, or the job finished, meanwhile")
                if base is not None and ref.step < base.step:
                    raise StaleCommitError(f"step {ref.step} lies before step {base.step}")
                return replace(
                    found,
                    current=ref,
                    previous=_chain(found, base)[: max(PREDECESSORS, keep - 1)],
                    released=released or manifest.final,
                    final=manifest.final,
                )

            try:
                self._head = self._move(committed)
            except StaleCommitError:
                # The same call was made before, and its write landed late: it is done.
                if not _names(self._held(), ref, released=released, final=manifest.final):
                    raise
            return self._held()

    def release(self) -> Head:
        """Say that nothing more will come from us. Doing it twice is doing it once."""
        with self._lock:
            head = self._held()
            if not head.released:
                self._head = self._move(_released)
            return self._held()

    def _alive(self) -> None:
        if self._fenced is not None:
            raise self._fenced

    def _held(self) -> Head:
        self._alive()
        if self._head is None:
            raise ValueError("HEAD was not claimed: call claim() first")
        return self._head

    def _claimed(self, found: Head | None) -> Head:
        if found is None:
            found = Head(self.job_id, self.generation, 0, "", self.owner)
        return replace(found, generation=self.generation, owner=self.owner, released=False)

    def _move(self, change: Callable[[Head | None], Head], *, claiming: bool = False) -> Head:
        """Compare-and-swap HEAD to `change(HEAD)` until it is known to have happened, or not.

        A retry sends the same bytes as long as it goes against the same version.
        """
        found, tag = self._head, self._tag
        wanted = None if claiming else self._stamped(change, found)
        trouble: StoreError | None = None
        for attempt in range(ATTEMPTS):
            if attempt > 1 or isinstance(trouble, StoreUnavailableError):
                self._sleep(FIRST_PAUSE_S * 2**attempt)
            try:
                if trouble or wanted is None:
                    now, now_tag = self._look(claiming=claiming)
                    if wanted and now and now.nonce == wanted.nonce:
                        self._tag = now_tag
                        return wanted
                    if wanted is None or now_tag != tag:
                        # An earlier write of ours landed late, or an older writer was faster.
                        if not claiming:
                            self._head, self._tag = now, now_tag
                        tag, wanted = now_tag, self._stamped(change, now)
                self._tag = self.store.put_if(head_key(self.job_id), wanted.to_bytes(), tag)
            except (ConflictError, StoreUnavailableError) as error:
                trouble = error
            else:
                return wanted
        raise StoreUnavailableError(f"HEAD of job {self.job_id} could not be moved: {trouble}")

    def _look(self, *, claiming: bool) -> tuple[Head | None, str | None]:
        """HEAD as it is now, if we may still move it. Raises FencedError."""
        entry = read_head(self.store, self.job_id)
        if claiming:
            self._check_known(entry)
        if entry is None:
            if claiming and self._head is None:
                return None, None
            raise self._fence_off(0, "nobody: HEAD is gone")
        head, tag = entry
        ours = (head.generation, head.owner) == (self.generation, self.owner)
        if claiming:
            may = ours or head.generation < self.generation
        else:
            may = ours and head.nonce in self._sent
        if not may:
            raise self._fence_off(head.generation, head.owner)
        return head, tag

    def _check_known(self, entry: tuple[Head, str] | None) -> None:
        """Raises HeadLostError."""
        found = 0 if entry is None else entry[0].generation
        if found >= self._known_generation:
            return
        seen = "is missing" if entry is None else f"is of generation {found}"
        raise HeadLostError(
            f"HEAD of job {self.job_id} {seen} in {self.store.url}, though generation "
            f"{self._known_generation} had it: put the store back, or start a new job"
        )

    def _fence_off(self, generation: int, owner: str) -> FencedError:
        self._fenced = FencedError(generation, self.generation, owner)
        return self._fenced

    def _stamped(self, change: Callable[[Head | None], Head], found: Head | None) -> Head:
        seq = 1 if found is None else found.seq + 1
        head = replace(change(found), seq=seq, nonce=self._make_nonce())
        self._sent[head.nonce] = head.current
        return head

    def _create(self, key: str, data: bytes) -> None:
        """Write a manifest once; an unknown outcome is read back."""
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
        """Wait until HEAD may be claimed; the reason: now, ours, released or deadline.

        `claim_of()` gives how the daemon wants it claimed at this moment, and the seconds that are
        left, at this moment, until HEAD may be taken from an owner who did not release it. Waiting
        keeps the owner's last work; safety does not depend on it. Nor is a HEAD taken early that
        nobody has claimed yet: its owner may be on the way. Raises FencedError, HeadLostError.
        """
        while True:
            asked_at = monotonic()
            claim, left_s = claim_of()
            if claim == CLAIM_NOW:
                return "now"
            try:
                entry = read_head(self.store, self.job_id)
            except StoreUnavailableError:
                entry = None  # a store that is down is no reason to claim early
            else:
                reason = self._claimable(entry)
                if reason:
                    return reason
            left_s -= monotonic() - asked_at
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


def _released(found: Head | None) -> Head:
    assert found is not None  # noqa: S101 - `_move` checked that it is ours
    return replace(found, released=True)


def _names(head: Head, ref: HeadRef, *, released: bool, final: bool) -> bool:
    """Whether HEAD names this very checkpoint (under whatever key), and says as much of the end."""
    current = head.current
    return (
        current is not None
        and (current.generation, current.digest) == (ref.generation, ref.digest)
        and (head.released, head.final) == (released or final, final)
    )


def _chain(head: Head, base: HeadRef | None) -> tuple[HeadRef, ...]:
    """HEAD's checkpoints, newest first, from `base` on."""
    refs = (head.current, *head.previous)
    return tuple(ref for ref in refs[refs.index(base) :] if ref) if base in refs else ()
