"""Removing old checkpoints, and never the last good one."""

from __future__ import annotations

import re
from collections.abc import Callable

from providers.stores.base import NotFoundError, ObjectStore
from spotd.wire import WireError, parse_pin, pin_folder
from trainer.fence import Fence, FencedError, read_head
from trainer.saver.reading import read_manifest, verify

_FOLDER = re.compile(r"(?P<folder>jobs/[^/]+/g(?P<generation>\d{8})/s(?P<step>\d{12})-[^/]+)/[^/]+")


def remove_old(fence: Fence, keep: int, go_on: Callable[[], bool]) -> int:
    """Delete all but the newest `keep` checkpoints of HEAD's chain; how many objects went.

    What a pin names stays (`spotctl ckpt pin`), and a pin that cannot be read keeps everything.
    Also goes what never was committed, of older generations and, of ours, of steps before HEAD's:
    what is at that step or beyond another machine of ours may be writing. Nothing is deleted
    before the newest checkpoint has been read back and verified, and unless HEAD is still ours;
    `go_on` is asked in between and ends the work early. Raises CorruptError when the newest one is
    not what was written, FencedError, WireError for a pin, and store errors.
    """
    head, store, job_id = fence.head, fence.store, fence.job_id
    if head is None or head.current is None:
        return 0
    chain = [ref for ref in (head.current, *head.previous) if ref]
    kept = {ref.manifest.rpartition("/")[0] for ref in chain[: max(1, keep)]}
    doomed = []
    for info in store.list(f"jobs/{job_id}/g"):
        match = _FOLDER.fullmatch(info.key)
        if match is None or match["folder"] in kept:
            continue
        if (int(match["generation"]), int(match["step"])) < (head.generation, head.current.step):
            doomed.append(info.key)
    if not doomed:
        return 0
    if not verify(store, read_manifest(store, head.current), go_on):
        return 0
    entry = read_head(store, job_id)
    if entry is None or entry[0].nonce != head.nonce:
        raise FencedError(entry[0].generation if entry else 0, head.generation, head.owner)
    # Last: of what is pinned until now, nothing goes.
    pinned = {f"{folder}/" for folder in _pinned(store, job_id)}
    doomed = [key for key in doomed if not key.startswith(tuple(pinned))]
    gone = 0
    for key in doomed:
        if not go_on():
            break
        store.delete(key)
        gone += 1
    return gone


def _pinned(store: ObjectStore, job_id: str) -> set[str]:
    """The folders that pins name. Raises WireError, which names the pin, and store errors."""
    found = set()
    for info in store.list(pin_folder(job_id)):
        try:
            found.add(parse_pin(store.get(info.key)[0]).folder)
        except NotFoundError:
            continue  # unpinned since it was listed
        except WireError as error:
            raise WireError(f"{info.key}: {error}") from None
    return found
