"""Check now and then which copies of data sets are complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from providers.stores.base import ObjectStore, StoreError
from providers.stores.dataset_copy import is_complete
from spotd.base.errors import UserError
from spotd.domain.datasets import DataSet

log = structlog.get_logger(__name__)

EVERY_S = 300.0


class DatasetCopies:
    """The data sets with the last observation of their copies.

    `now()` is at most some minutes old, and does not wait for a store. A copy that the box cannot
    read is in neither `staged` nor `missing`.
    """

    def __init__(
        self,
        datasets: Callable[[], Mapping[str, DataSet]],
        open_store: Callable[[str], ObjectStore],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._datasets, self._open_store, self._monotonic = datasets, open_store, monotonic
        self._lock = threading.Lock()
        self._looking = False
        self._due_s = float("-inf")
        self._seen: Mapping[str, bool] = {}  # copy -> whether all of it is there

    def now(self) -> Mapping[str, DataSet]:
        """Return the data sets at once; a check that is due starts in the background."""
        declared = self._datasets()
        if not declared:
            return {}
        with self._lock:
            due = self._monotonic() >= self._due_s and not self._looking
            self._looking = self._looking or due
            seen = self._seen
        if due:
            threading.Thread(target=self.look, name="datasets", daemon=True).start()
        return {name: _with(data, seen) for name, data in declared.items()}

    def note(self, url: str) -> None:
        """Note that a copy was seen to be complete."""
        with self._lock:
            self._seen = {**self._seen, url: True}

    def look(self) -> None:
        """Check every copy of a data set whose size is known."""
        seen: dict[str, bool] = {}
        try:
            for data in self._datasets().values():
                for url in data.copies if data.size_bytes else ():
                    try:
                        seen[url] = is_complete(self._open_store(url))
                    except (StoreError, UserError) as error:
                        log.warning("a copy cannot be checked", url=url, error=str(error))
        finally:
            with self._lock:
                self._seen, self._looking = seen, False
                self._due_s = self._monotonic() + EVERY_S


def _with(data: DataSet, seen: Mapping[str, bool]) -> DataSet:
    known = [url for url in data.copies if url in seen]
    staged = frozenset(url for url in known if seen[url])
    return replace(data, staged=staged, missing=frozenset(known) - staged)
