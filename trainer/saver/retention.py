"""Delete old checkpoints, but never the last good one."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from providers.stores.base import NotFoundError, ObjectStore, StoreError
from providers.stores.multi_store import other_store_urls, store_at
from spotd.wire import Head, HeadRef, Pin, WireError, parse_pin, pin_folder, pin_key
from trainer.fence import Fence
from trainer.saver.reader import Chunk, CorruptError, all_chunks, read_chunk, read_manifest

MILESTONE = "step-"  # prefix of the names of pins made by retention
RESULTS = "results-"  # prefix of the names of pins of trainings that have ended
MAX_HISTORY = 1000  # most checkpoints in HEAD, and most that `keep` may be
_MANIFEST = "/MANIFEST.json"
_ALL_STEPS = 10**12  # more than a key has digits for
_FOLDER = re.compile(r"(?P<folder>jobs/[^/]+/g(?P<generation>\d{8})/s(?P<step>\d{12})-[^/]+)/[^/]+")


class PinRefusedError(Exception):
    """A milestone cannot be pinned, so it is kept without a pin: the store is full or away."""


@dataclass
class ReadBack:
    """The progress of reading a checkpoint back, so that the next `remove_old` continues there.

    It is only in memory: a restarted saver reads from the beginning.
    """

    ref: HeadRef | None = None  # None: not started
    remaining: deque[Chunk] = field(default_factory=deque)
    has_more: bool = False  # another call may delete more
    verified: HeadRef | None = None  # newest completely read back
    pinned_up_to: HeadRef | None = None  # milestones up to here are pinned
    intact: set[tuple[str, str]] = field(default_factory=set)  # (store, key) of shards read back

    def begin(self, store: ObjectStore, ref: HeadRef) -> None:
        """Start with this checkpoint; shards that an earlier one shares are not read again.

        Raises the errors of `read_manifest`.
        """
        chunks = all_chunks(read_manifest(store, ref))
        self.remaining = deque(
            chunk for chunk in chunks if (chunk.shard.store, chunk.shard.key) not in self.intact
        )
        self.ref = ref

    def resume(self, store: ObjectStore, may_continue: Callable[[], bool]) -> bool:
        """Continue reading; return whether the whole checkpoint was read and is intact.

        False if `may_continue` stopped it: call again, as after a store error. Raises the errors of
        `verify`.
        """
        assert self.ref is not None  # noqa: S101 - begin() was called
        while self.remaining:
            if not may_continue():
                return False
            read_chunk(store, self.remaining[0])
            self.remaining.popleft()
        # Its manifest is deleted first if somebody removes the checkpoint.
        manifest = read_manifest(store, self.ref)
        self.intact = {(shard.store, shard.key) for shard in manifest.shards}
        self.verified = self.ref
        return True

    def reset(self) -> None:
        """Read the next checkpoint from its beginning."""
        self.ref = None
        self.remaining.clear()

    def required_history(self, head: Head | None, keep_every_steps: int) -> int:
        """Return how many checkpoints HEAD must list.

        A commit must not drop the checkpoint that is being read back, nor the verified one before
        it, which is the only good one if all others are damaged, nor a milestone (one of each
        `keep_every_steps`) that is not pinned yet.
        """
        chain = _chain(head) if head else []
        needed = [chain.index(ref) + 2 for ref in (self.ref, self.verified) if ref in chain]
        if keep_every_steps:
            pinned = [number for number, ref in enumerate(chain) if ref == self.pinned_up_to]
            needed.append(pinned[0] + 2 if pinned else len(chain) + 1)
        return min(max(needed, default=0), MAX_HISTORY)


@dataclass(frozen=True)
class _Garbage:
    """Objects that may be deleted once a checkpoint is verified.

    `objects`: (store URL, key). `pins_due`: milestones to pin and keep. `errors`: of stores that
    could not be listed.
    """

    objects: list[tuple[str, str]]
    pins_due: list[HeadRef]
    errors: list[StoreError]


def remove_old(
    fence: Fence,
    keep: int,
    may_continue: Callable[[], bool],
    keep_every_steps: int = 0,
    read_back: ReadBack | None = None,
    *,
    shares_shards: bool = False,
) -> int:
    """Delete all but the newest `keep` checkpoints of HEAD's history; return the number of objects.

    Pinned checkpoints stay (`spotctl ckpt pin`), and a pin that cannot be read keeps everything.
    The first checkpoint of each `keep_every_steps` (0: none) is pinned here, so that it stays too.

    With `shares_shards` manifests may name shards in the folders of other checkpoints; those of the
    checkpoints that stay are not deleted. Uncommitted data is: all of older generations, and of
    this generation only steps below HEAD's, because another machine may be writing later ones. With
    `shares_shards` there is no other machine, and steps may be equal: all uncommitted data is.

    Nothing is deleted before the newest checkpoint has been read back and verified, or once HEAD
    belongs to another generation. `may_continue` is called in between and can end the work early.
    With `read_back` the next call continues with the same checkpoint even if newer ones were
    committed; then only what is older than that checkpoint is deleted. A commit may happen
    meanwhile; a claim ends the work until the next commit.

    Shards are deleted from every store that has some. If one cannot be listed, its error is raised
    after the others are done. Raises CorruptError if the checkpoint is damaged, PinRefusedError,
    FencedError, WireError for an unreadable pin, and store errors.
    """
    read = ReadBack() if read_back is None else read_back
    read.has_more = False
    claimed, head, store = fence.claimed_seq, fence.head, fence.store
    if head is None or head.current is None or head.seq <= claimed:
        return 0

    def may_go_on() -> bool:
        return may_continue() and fence.claimed_seq == claimed

    errors: list[StoreError] = []
    if read.ref not in _chain(head):
        read.reset()
        garbage = _find_garbage(fence, head, 0, keep, keep_every_steps, shares_shards=shares_shards)
        if not (garbage.objects or garbage.pins_due):
            read.pinned_up_to = head.current
            return _deleted(0, garbage.errors)
        read.begin(store, head.current)
        errors = garbage.errors
    verified = _read_back(read, store, head.current, may_go_on)
    head = fence.head or head
    if not verified or read.ref not in _chain(head):
        read.has_more = True
        return _deleted(0, errors)
    at = _chain(head).index(read.ref)
    garbage = _find_garbage(fence, head, at, keep, keep_every_steps, shares_shards=shares_shards)
    count = _remove_and_note(read, fence, garbage, at, may_go_on, shares_shards=shares_shards)
    return _deleted(count, garbage.errors)


def _remove_and_note(
    read: ReadBack,
    fence: Fence,
    garbage: _Garbage,
    at: int,
    may_go_on: Callable[[], bool],
    *,
    shares_shards: bool,
) -> int:
    """Call `_remove` and note in `read` where the next call continues; return the count.

    `at` is the index in HEAD's history of the checkpoint that was read back.
    """
    try:
        count, complete = _remove(fence, garbage, may_go_on, shares_shards=shares_shards)
    except PinRefusedError:
        # What is older than the newest checkpoint makes room, once that one has been read back.
        read.has_more = at > 0
        if read.has_more:
            read.reset()
        raise
    read.has_more = not complete or at > 0
    if complete:
        read.pinned_up_to = read.ref
        read.reset()
    return count


def _read_back(
    read: ReadBack, store: ObjectStore, current: HeadRef, may_go_on: Callable[[], bool]
) -> bool:
    """Call `ReadBack.resume`; after damage the next call starts from the beginning.

    Damage is not an error if somebody deleted the checkpoint meanwhile and it is not the newest.
    """
    ref = read.ref
    try:
        return read.resume(store, may_go_on)
    except (CorruptError, NotFoundError):
        read.reset()
        if ref is None or ref == current or _exists(store, ref.manifest):
            raise
        return False


def _exists(store: ObjectStore, key: str) -> bool:
    try:
        store.get(key)
    except NotFoundError:
        return False
    return True


def _remove(
    fence: Fence, garbage: _Garbage, may_go_on: Callable[[], bool], *, shares_shards: bool
) -> tuple[int, bool]:
    """Delete the garbage; return the number of objects deleted and whether it was all.

    A full store takes no pin, so pins are written again once space has been freed.
    """
    store, count = fence.store, 0
    fence.check()
    with suppress(StoreError, OSError):
        _write_pins(store, fence.job_id, garbage.pins_due)
    # Keep everything that is pinned by now.
    refs = [*(pin.ref for pin in _pins(store, fence.job_id)), *garbage.pins_due]
    protected = tuple(f"{_folder_of(ref)}/" for ref in refs)
    shared = _shards_of(store, refs) if shares_shards else set()
    objects = [
        (url, key)
        for url, key in garbage.objects
        if not key.startswith(protected) and (url, key) not in shared
    ]
    for manifests in (True, False):  # manifests first: a checkpoint needs one
        for url, key in objects:
            if key.endswith(_MANIFEST) is manifests:
                if not may_go_on():
                    return count, False
                store_at(store, url).delete(key)
                count += 1
        if manifests and count:
            fence.check()  # another generation may have resumed meanwhile
    known = {pin.name for pin in _pins(store, fence.job_id)} if garbage.pins_due else set()
    due = [ref for ref in garbage.pins_due if f"{MILESTONE}{ref.step}" not in known]
    try:
        _write_pins(store, fence.job_id, due)
    except (StoreError, OSError) as error:
        raise PinRefusedError(str(error)) from error
    return count, True


def _write_pins(store: ObjectStore, job_id: str, due: Iterable[HeadRef]) -> None:
    for ref in due:
        pin = Pin(f"{MILESTONE}{ref.step}", ref, time.time_ns() // 1000, "keep_every")
        store.put(pin_key(job_id, pin.name), pin.to_bytes())


def _folder_of(ref: HeadRef) -> str:
    return ref.manifest.rpartition("/")[0]


def _shards_of(store: ObjectStore, refs: Iterable[HeadRef]) -> set[tuple[str, str]]:
    """Return (store URL, key) of the shards that these checkpoints need; "" is the authority.

    A checkpoint that is gone or damaged needs none. Raises store errors.
    """
    shards: set[tuple[str, str]] = set()
    for ref in refs:
        with suppress(NotFoundError, CorruptError):
            manifest = read_manifest(store, ref)
            shards |= {(shard.store, shard.key) for shard in manifest.shards}
    return shards


def _find_garbage(
    fence: Fence,
    head: Head,
    at: int,
    keep: int,
    keep_every_steps: int,
    *,
    shares_shards: bool,
) -> _Garbage:
    """Find what is older than the checkpoint at index `at` of HEAD's history.

    Raises WireError, and the errors of the authority store.
    """
    chain, store, job_id = _chain(head), fence.store, fence.job_id
    retained = {_folder_of(ref) for ref in chain[: max(keep, at + 1)]}
    before = (chain[at].generation, _ALL_STEPS if shares_shards else chain[at].step)
    objects = [("", key) for key in _list_garbage(store, job_id, before, retained)]
    errors: list[StoreError] = []
    for url in other_store_urls(store):
        try:
            keys = _list_garbage(store_at(store, url), job_id, before, retained)
        except StoreError as error:  # noqa: PERF203 - one store does not stop others
            errors.append(error)
        else:
            objects += [(url, key) for key in keys]
    if shares_shards and objects:
        needed = _shards_of(store, chain[: max(keep, at + 1)])
        objects = [entry for entry in objects if entry not in needed]
    pins = _pins(store, job_id) if keep_every_steps else []
    due = milestones(chain[at:], pins, keep_every_steps) if keep_every_steps else []
    return _Garbage(objects, due, errors)


def _list_garbage(
    store: ObjectStore, job_id: str, before: tuple[int, int], retained: Collection[str]
) -> list[str]:
    """Return keys before (generation, step) `before` that are not in a folder to keep."""
    keys = []
    for info in store.list(f"jobs/{job_id}/g"):
        match = _FOLDER.fullmatch(info.key)
        if match is None or match["folder"] in retained:
            continue
        if (int(match["generation"]), int(match["step"])) < before:
            keys.append(info.key)
    return keys


def _deleted(count: int, errors: list[StoreError]) -> int:
    if errors:
        raise errors[0]
    return count


def pin_suspect(store: ObjectStore, head: Head, manifest: str) -> None:
    """Pin the checkpoint of this manifest if HEAD lists it, so that a person can inspect it.

    The job resumes from another one and no longer needs it. Raises store errors.
    """
    for ref in _chain(head):
        if ref.manifest == manifest:
            pin = Pin(f"suspect-{ref.step}", ref, time.time_ns() // 1000, "step back")
            store.put(pin_key(head.job, pin.name), pin.to_bytes())


def pin_results(store: ObjectStore, job_id: str, number: int, name: str, ref: HeadRef) -> None:
    """Pin the checkpoint with the results of the training `name`, the `number`th that has ended.

    The program needs it whenever it starts from its beginning. Raises store errors.
    """
    pin = Pin(f"{RESULTS}{number}", ref, time.time_ns() // 1000, f"training {name} ended")
    store.put(pin_key(job_id, pin.name), pin.to_bytes())


def milestones(chain: Iterable[HeadRef], pins: Iterable[Pin], every_steps: int) -> list[HeadRef]:
    """Return the first checkpoint of each `every_steps` steps that comes after the last pinned one.

    A milestone that somebody unpinned is not pinned again.
    """
    pinned = (pin.ref.step // every_steps for pin in pins if pin.name.startswith(MILESTONE))
    last, due = max(pinned, default=0), []
    for ref in sorted(chain, key=lambda ref: ref.step):
        if ref.step // every_steps > last:
            last = ref.step // every_steps
            due.append(ref)
    return due


def _chain(head: Head) -> list[HeadRef]:
    return [ref for ref in (head.current, *head.previous) if ref]


def _pins(store: ObjectStore, job_id: str) -> list[Pin]:
    """Raises WireError, which names the pin, and store errors."""
    pins = []
    for info in store.list(pin_folder(job_id)):
        try:
            pins.append(parse_pin(store.get(info.key)[0]))
        except NotFoundError:  # noqa: PERF203 - few pins
            continue  # unpinned since it was listed
        except WireError as error:
            raise WireError(f"{info.key}: {error}") from None
    return pins
