"""Record all versions of a job's HEAD by polling its store."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from providers.stores import open_store
from providers.stores.base import NotFoundError
from spotd.wire import Head, head_key, parse_head

POLL_FILE_S = 0.02
POLL_REMOTE_S = 0.1  # for stores where every poll is a request


class HeadWatch:
    """Polls HEAD many times a second and records every version, oldest first."""

    def __init__(
        self, url: str, job_id: str, options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._store = open_store(url, options)
        self._key = head_key(job_id)
        self._every_s = POLL_FILE_S if url.startswith("file:") else POLL_REMOTE_S
        self._last = b""
        self.versions: list[Head] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="heads")

    def __enter__(self) -> HeadWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._poll()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self._poll()

    def _poll(self) -> None:
        try:
            data = self._store.get(self._key)[0]
        except NotFoundError:
            return  # not claimed yet
        if data != self._last:
            self._last = data
            self.versions.append(parse_head(data))


def zombie_commits(versions: Sequence[Head]) -> int:
    """Count checkpoints of an older generation that entered HEAD after a newer one claimed it.

    HEAD lists its last few checkpoints, so that one between two polls is counted as well.
    """
    owner, known_manifests, count = 0, set[str](), 0
    for head in versions:
        new_refs = [
            ref
            for ref in (head.current, *head.previous)
            if ref and ref.manifest not in known_manifests
        ]
        count += sum(ref.generation < owner for ref in new_refs)
        known_manifests |= {ref.manifest for ref in new_refs}
        owner = max(owner, head.generation)
    return count
