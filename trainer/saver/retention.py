"""Removing old checkpoints, and never the last good one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable

from providers.stores.base import NotFoundError, ObjectStore, StoreError
from providers.stores.several import others_of, store_at
from spotd.wire import Head, HeadRef, Pin, WireError, parse_pin, pin_folder, pin_key
from trainer.fence import Fence, FencedError, read_head
from trainer.saver.reading import read_manifest, verify

MILESTONE = "step-"  # what the names of pins begin with that retention makes itself
_FOLDER = re.compile(r"(?P<folder>jobs/[^/]+/g(?P<generation>\d{8})/s(?P<step>\d{12})-[^/]+)/[^/]+")


def remove_old(
    fence: Fence, keep: int, go_on: Callable[[], bool], keep_every_steps: int = 0
) -> int:
    """Delete all but the newest `keep` checkpoints of HEAD's chain; how many objects went.

    What a pin names stays (`spotctl ckpt pin`), and a pin that cannot be read keeps everything. Of
    each `keep_every_steps` (0: none), the first checkpoint is pinned here, so that it stays too.
    Also goes what never was committed, of older generations and, of ours, of steps before HEAD's:
    what is at that step or beyond another machine of ours may be writing. Nothing is deleted
    before the newest checkpoint has been read back and verified, and unless HEAD is still ours;
    `go_on` is asked in between and ends the work early. Shards go from each store that has some:
    one that cannot be listed now is told of by its error, when the others are done. Raises
    CorruptError when the newest one is not what was written, FencedError, WireError for a pin, and
    store errors.
    """
    head, store, job_id = fence.head, fence.store, fence.job_id
    if head is None or head.current is None:
        return 0
    chain = _chain(head)
    kept = {ref.manifest.rpartition("/")[0] for ref in chain[: max(1, keep)]}
    before = (head.generation, head.current.step)
    doomed = [("", key) for key in _doomed(store, job_id, before, kept)]
    troubles: list[StoreError] = []
    for url in others_of(store):
        try:
            there = _doomed(store_at(store, url), job_id, before, kept)
        except StoreError as error:  # noqa: PERF203 - what is away, or refuses, keeps its own and no other's
            troubles.append(error)
        else:
            doomed += [(url, key) for key in there]
    due = milestones(chain, _pins(store, job_id), keep_every_steps) if keep_every_steps else []
    if not (doomed or due):
        return _done(0, troubles)
    if not verify(store, read_manifest(store, head.current), go_on):
        return _done(0, troubles)
    entry = read_head(store, job_id)
    if entry is None or entry[0].nonce != head.nonce:
        raise FencedError(entry[0].generation if entry else 0, head.generation, head.owner)
    for ref in due:
        made = Pin(f"{MILESTONE}{ref.step}", ref, time.time_ns() // 1000, "keep_every")
        store.put(pin_key(job_id, made.name), made.to_bytes())
    # Last: of what is pinned until now, nothing goes.
    pinned = tuple({f"{pin.folder}/" for pin in _pins(store, job_id)})
    gone = 0
    for url, key in doomed:
        if not go_on():
            return _done(gone, troubles)
        if not key.startswith(pinned):
            store_at(store, url).delete(key)
            gone += 1
    return _done(gone, troubles)


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
