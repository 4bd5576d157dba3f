"""HEAD of a job's checkpoints as it is seen from the outside, by nobody who writes it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from providers.stores import open_store
from providers.stores.base import NotFoundError
from spotd.wire import Head, head_key, parse_head

EVERY_S = 0.02
ASKED_EVERY_S = 0.1  # where each look is a request


class HeadWatch:
    """Reads HEAD many times a second and keeps every version that it sees, oldest first."""

    def __init__(
        self, url: str, job_id: str, options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._store = open_store(url, options)
        self._key = head_key(job_id)
        self._every_s = EVERY_S if url.startswith("file:") else ASKED_EVERY_S
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
        self._look()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        try:
            data = self._store.get(self._key)[0]
        except NotFoundError:
            return  # nobody has claimed the job yet
        if data != self._last:
            self._last = data
            self.versions.append(parse_head(data))


def zombie_commits(versions: Sequence[Head]) -> int:
    """Checkpoints of an older generation that came into HEAD's chain after a newer one had claimed
    it. HEAD remembers its last few, so that one between two of our looks is seen as well."""
    owner, known, accepted = 0, set[str](), 0
    for head in versions:
        fresh = [ref for ref in (head.current, *head.previous) if ref and ref.manifest not in known]
        accepted += sum(ref.generation < owner for ref in fresh)
        known |= {ref.manifest for ref in fresh}
        owner = max(owner, head.generation)
    return accepted
