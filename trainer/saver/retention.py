"""Removing old checkpoints, and never the last good one."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from providers.stores.base import NotFoundError, ObjectStore, StoreError
from providers.stores.several import others_of, store_at
from spotd.wire import Head, HeadRef, Pin, WireError, parse_pin, pin_folder, pin_key
from trainer.fence import Fence
from trainer.saver.reader import Chunk, CorruptError, all_chunks, read_chunk, read_manifest

MILESTONE = "step-"  # what the names of pins begin with that retention makes itself
LONGEST = 1000  # checkpoints that HEAD remembers, and the most that `keep` may be
_MANIFEST = "/MANIFEST.json"
_FOLDER = re.compile(r"(?P<folder>jobs/[^/]+/g(?P<generation>\d{8})/s(?P<step>\d{12})-[^/]+)/[^/]+")


@dataclass
class ReadBack:
    """How far `remove_old` has come with reading a checkpoint back, so that its next call goes on
    there. It is in memory alone: whoever has it no more reads anew."""

    ref: HeadRef | None = None  # None: none is begun
    left: deque[Chunk] = field(default_factory=deque)
    more: bool = False  # another call at once may do more
    verified: HeadRef | None = None  # the newest one that was wholly read back
    settled: HeadRef | None = None  # the newest one up to which what is to be pinned is pinned

    def begin(self, store: ObjectStore, ref: HeadRef) -> None:
        """With this one. Raises as `read_manifest`."""
        self.left = deque(all_chunks(read_manifest(store, ref)))
        self.ref = ref

    def read_on(self, store: ObjectStore, go_on: Callable[[], bool]) -> bool:
        """Whether all of it was read and is right. False if `go_on` said no before: call again, as
        after an error of the store. Raises as `verify`."""
        assert self.ref is not None  # noqa: S101 - it was begun
        while self.left:
            if not go_on():
                return False
            read_chunk(store, self.left[0])
            self.left.popleft()
        read_manifest(store, self.ref)  # it goes first when somebody removes it meanwhile
        self.verified = self.ref
        return True

    def forget(self) -> None:
        """The next one is read from its beginning."""
        self.ref = None
        self.left.clear()

    def reach(self, head: Head | None, keep_every_steps: int) -> int:
        """How many checkpoints HEAD has to remember, lest a commit drops the one that is being read
        back, or the verified one before it, which is what there is if all others are torn; or, of
        each `keep_every_steps`, one that is not pinned yet."""
        chain = _chain(head) if head else []
        needed = [chain.index(ref) + 2 for ref in (self.ref, self.verified) if ref in chain]
        if keep_every_steps:
            at = [number for number, ref in enumerate(chain) if ref == self.settled]
            needed.append(at[0] + 2 if at else len(chain) + 1)
        return min(max(needed, default=0), LONGEST)


@dataclass(frozen=True)
class _Removable:
    """What may go once a checkpoint is verified: (store, key)s; what is to be pinned, and does not
    go; and why some of it could not be listed."""

    doomed: list[tuple[str, str]]
    due: list[HeadRef]
    troubles: list[StoreError]


def remove_old(
    fence: Fence,
    keep: int,
    go_on: Callable[[], bool],
    keep_every_steps: int = 0,
    so_far: ReadBack | None = None,
) -> int:
    """Delete all but the newest `keep` checkpoints of HEAD's chain; how many objects went.

    What a pin names stays (`spotctl ckpt pin`), and a pin that cannot be read keeps everything. Of
    each `keep_every_steps` (0: none), the first checkpoint is pinned here, so that it stays too.
    Also goes what never was committed, of older generations and, of ours, of steps before HEAD's:
    what is at that step or beyond another machine of ours may be writing. Nothing is deleted
    before the newest checkpoint has been read back and verified, and unless HEAD is still ours;
    `go_on` is asked in between and ends the work early. With `so_far` the next call goes on with
    the same checkpoint, though newer ones were committed: then what is older than that one goes,
    and it stays itself with all that are newer. A commit may be made meanwhile; with a claim it is
    over, and nothing goes before the next commit.

    Shards go from each store that has some: one that cannot be listed now is told of by its error,
    when the others are done. Raises CorruptError when the checkpoint is not what was written,
    FencedError, WireError for a pin, and store errors.
    """
    read = ReadBack() if so_far is None else so_far
    read.more = False
    claimed, head, store = fence.claimed_seq, fence.head, fence.store
    if head is None or head.current is None or head.seq <= claimed:
        return 0

    def going() -> bool:
        return go_on() and fence.claimed_seq == claimed

    troubles: list[StoreError] = []
    if read.ref not in _chain(head):
        read.forget()
        old = _old(fence, head, 0, keep, keep_every_steps)
        if not (old.doomed or old.due):
            read.settled = head.current
            return _done(0, old.troubles)
        read.begin(store, head.current)
        troubles = old.troubles
    verified = _verified(read, store, head.current, going)
    head = fence.head or head
    if not verified or read.ref not in _chain(head):
        read.more = True
        return _done(0, troubles)
    at = _chain(head).index(read.ref)
    old = _old(fence, head, at, keep, keep_every_steps)
    gone, whole = _remove(fence, old, going)
    read.more = not whole or at > 0
    if whole:
        read.settled = read.ref
        read.forget()
    return _done(gone, old.troubles)


def _verified(
    read: ReadBack, store: ObjectStore, current: HeadRef, going: Callable[[], bool]
) -> bool:
    """As `ReadBack.read_on`, for another call to begin anew with where it was found wrong. One that
    a person has removed meanwhile is not."""
    ref = read.ref
    try:
        return read.read_on(store, going)
    except (CorruptError, NotFoundError):
        read.forget()
        if ref is None or ref == current or _is_there(store, ref.manifest):
            raise
        return False


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.get(key)
    except NotFoundError:
        return False
    return True


def _remove(fence: Fence, old: _Removable, going: Callable[[], bool]) -> tuple[int, bool]:
    """How many objects went, and whether it was all. A store that is full takes no pin: it is tried
    again when what may go has gone, and what is to be pinned is no part of that."""
    store, gone = fence.store, 0
    fence.check()
    with suppress(StoreError, OSError):
        _pin(store, fence.job_id, old.due)
    # Of what is pinned until now, nothing goes.
    pinned = {f"{pin.folder}/" for pin in _pins(store, fence.job_id)}
    stays = tuple(pinned | {f"{_folder_of(ref)}/" for ref in old.due})
    doomed = [one for one in old.doomed if not one[1].startswith(stays)]
    for named in (True, False):  # manifests first: without its own, a checkpoint is none
        for url, key in doomed:
            if key.endswith(_MANIFEST) is named:
                if not going():
                    return gone, False
                store_at(store, url).delete(key)
                gone += 1
        if named and gone:
            fence.check()  # shards are many, and somebody may have gone on from one of them
    known = {pin.name for pin in _pins(store, fence.job_id)} if old.due else set()
    _pin(store, fence.job_id, (ref for ref in old.due if f"{MILESTONE}{ref.step}" not in known))
    return gone, True


def _pin(store: ObjectStore, job_id: str, due: Iterable[HeadRef]) -> None:
    for ref in due:
        made = Pin(f"{MILESTONE}{ref.step}", ref, time.time_ns() // 1000, "keep_every")
        store.put(pin_key(job_id, made.name), made.to_bytes())


def _folder_of(ref: HeadRef) -> str:
    return ref.manifest.rpartition("/")[0]


def _old(fence: Fence, head: Head, at: int, keep: int, keep_every_steps: int) -> _Removable:
    """Of what lies before the checkpoint `at` that place of HEAD's chain. Raises WireError, and the
    errors of the authority."""
    chain, store, job_id = _chain(head), fence.store, fence.job_id
    kept = {_folder_of(ref) for ref in chain[: max(keep, at + 1)]}
    before = (chain[at].generation, chain[at].step)
    doomed = [("", key) for key in _doomed(store, job_id, before, kept)]
    troubles: list[StoreError] = []
    for url in others_of(store):
        try:
            there = _doomed(store_at(store, url), job_id, before, kept)
        except StoreError as error:  # noqa: PERF203 - what is away, or refuses, keeps its own and no other's
            troubles.append(error)
        else:
            doomed += [(url, key) for key in there]
    pins = _pins(store, job_id) if keep_every_steps else []
    due = milestones(chain[at:], pins, keep_every_steps) if keep_every_steps else []
    return _Removable(doomed, due, troubles)


def _doomed(
    store: ObjectStore, job_id: str, before: tuple[int, int], kept: Collection[str]
) -> list[str]:
    """What is of older generations, or of earlier steps of this one, and not in a folder that is
    kept."""
    found = []
    for info in store.list(f"jobs/{job_id}/g"):
        match = _FOLDER.fullmatch(info.key)
        if match is None or match["folder"] in kept:
            continue
        if (int(match["generation"]), int(match["step"])) < before:
            found.append(info.key)
    return found


def _done(count: int, troubles: list[StoreError]) -> int:
    if troubles:
        raise troubles[0]
    return count


def keep_suspect(store: ObjectStore, head: Head, manifest: str) -> None:
    """Pin the checkpoint of this manifest, if HEAD names it: what is resumed from another one has
    no more to do with it, and a person may want to look. Raises store errors."""
    for ref in _chain(head):
        if ref.manifest == manifest:
            made = Pin(f"suspect-{ref.step}", ref, time.time_ns() // 1000, "step back")
            store.put(pin_key(head.job, made.name), made.to_bytes())


def milestones(chain: Iterable[HeadRef], pins: Iterable[Pin], every_steps: int) -> list[HeadRef]:
    """Of each `every_steps` steps, from the first such number on, the first checkpoint of the
    chain, beyond those that are pinned for it: what was unpinned by hand does not come back."""
    mine = (pin.ref.step // every_steps for pin in pins if pin.name.startswith(MILESTONE))
    last, found = max(mine, default=0), []
    for ref in sorted(chain, key=lambda ref: ref.step):
        if ref.step // every_steps > last:
            last = ref.step // every_steps
            found.append(ref)
    return found


def _chain(head: Head) -> list[HeadRef]:
    return [ref for ref in (head.current, *head.previous) if ref]


def _pins(store: ObjectStore, job_id: str) -> list[Pin]:
    """Raises WireError, which names the pin, and store errors."""
    found = []
    for info in store.list(pin_folder(job_id)):
        try:
            found.append(parse_pin(store.get(info.key)[0]))
        except NotFoundError:  # noqa: PERF203 - of few
            continue  # unpinned since it was listed
        except WireError as error:
            raise WireError(f"{info.key}: {error}") from None
    return found
