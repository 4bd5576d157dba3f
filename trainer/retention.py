"""Removing old checkpoints, and never the last good one."""

from __future__ import annotations

import re
from collections.abc import Callable

from trainer.fence import Fence, FencedError, read_head
from trainer.shards import read_manifest, verify_shard

_FOLDER = re.compile(r"(?P<folder>jobs/[^/]+/g(?P<generation>\d{8})/s\d{12}-[^/]+)/[^/]+")


def remove_old(fence: Fence, keep: int, go_on: Callable[[], bool]) -> int:
    """Delete all but the newest `keep` checkpoints of HEAD's chain; how many objects went.

    Also goes what never was committed, of our generation and of older ones. Nothing is deleted
    before the newest checkpoint has been read back and verified, and unless HEAD is still ours;
    `go_on` is asked in between and ends the work early. Raises CorruptError when the newest one is
    not what was written, FencedError, and store errors.
    """
    head, store, job_id = fence.head, fence.store, fence.job_id
    if head is None or head.current is None:
        return 0
    chain = [ref for ref in (head.current, *head.previous) if ref]
    kept = {ref.manifest.rpartition("/")[0] for ref in chain[: max(1, keep)]}
    doomed = []
    for info in store.list(f"jobs/{job_id}/g"):
        match = _FOLDER.fullmatch(info.key)
        if match and match["folder"] not in kept and int(match["generation"]) <= head.generation:
            doomed.append(info.key)
    if not doomed:
        return 0
    manifest = read_manifest(store, head.current)
    for shard in manifest.shards:
        if not verify_shard(store, shard, go_on):
            return 0
    entry = read_head(store, job_id)
    if entry is None or entry[0].nonce != head.nonce:
        raise FencedError(entry[0].generation if entry else 0, head.generation, head.owner)
    gone = 0
    for key in doomed:
        if not go_on():
            break
        store.delete(key)
        gone += 1
    return gone
