"""Stage a data set once in a store of this machine's region (see stores/dataset_copy.py).

The first machine that needs it copies it from the source to its own disk, then uploads that copy to
the regional store and writes the marker; later machines copy from the regional store. Data sets
that are mounted are copied through memory instead because they need not fit on the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from providers.dollars import format_microusd
from providers.stores.base import ObjectStore
from providers.stores.dataset_copy import (
    CopyLock,
    copy_dataset,
    is_complete,
    list_data,
    mark_complete,
    missing_objects,
    record_origin,
)
from trainer.mounts.copy import MAX_PARALLEL, Copy, MountError, Sleep

POLL_S = 5.0


@dataclass(frozen=True)
class TransferPrice:
    """Price of transferring a data set, and the user's limit. `microusd_per_gb` None: unknown."""

    microusd_per_gb: int | None
    max_microusd: int

    def check(self, url: str, size: int) -> None:
        """Raises MountError if `size` bytes cost more than the limit, or the price is unknown."""
        if self.microusd_per_gb is None:
            raise MountError(
                f"the price of transferring {size / 1e9:.3g} GB of {url} here is unknown: set "
                "usd_per_gb in its [datasets.NAME], or run the job near the data"
            )
        cost = size / 1e9 * self.microusd_per_gb
        if cost > self.max_microusd:
            raise MountError(
                f"transferring {size / 1e9:.3g} GB of {url} here would cost "
                f"{format_microusd(cost)}, more than its max_usd of "
                f"{format_microusd(self.max_microusd)}: raise max_usd, or run the job near the data"
            )


class DatasetStaging:
    """Stages `source` in the store `regional`, and copies it to this machine by `make_copy(store)`
    unless that is None.

    `log(text)` is called with progress messages, `on_bytes(size)` for data copied through memory;
    the copies to disk count their own bytes.
    """

    def __init__(
        self,
        source: ObjectStore,
        regional: ObjectStore,
        price: TransferPrice,
        make_copy: Callable[[ObjectStore], Copy] | None,
        log: Callable[[str], None] = lambda _text: None,
        on_bytes: Callable[[int], None] = lambda _size: None,
        *,
        sleep: Sleep = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._regional, self._price = source, regional, price
        self._make_copy, self._log = make_copy, log
        self._on_bytes, self._sleep = on_bytes, sleep
        self._lock = CopyLock(regional, monotonic)

    def run(self) -> bool:
        """Stage the data set if needed; True if this call did it. After an error run it again.

        Raises DatasetCopyError, MountError, StoreError, OSError.
        """
        if not is_complete(self._regional):
            self._price.check(self._source.url, sum(item.size for item in list_data(self._source)))
        while not is_complete(self._regional):
            if not self._lock.acquire():
                self._sleep(POLL_S)
                continue
            with self._lock.held():
                if not is_complete(self._regional):  # another machine may have just finished
                    self._transfer()
                    return True
        if self._make_copy is not None:
            self._make_copy(self._regional).run()
        return False

    def _transfer(self) -> None:
        """Copy the data set from its source to the region's store; the caller holds the lock."""
        self._log(f"{self._source.url} is copied to {self._regional.url}, once for this region")
        if self._make_copy is None:
            copy_dataset(self._source, self._regional, on_bytes=self._on_bytes)
        else:
            self._stage_from_disk(self._make_copy(self._source))

    def _stage_from_disk(self, copy: Copy) -> None:
        """Copy to disk, upload from there what the regional store lacks, and write the marker."""
        wanted = list_data(self._source)
        record_origin(self._source, wanted, self._regional)
        copy.run()
        missing = missing_objects(wanted, self._regional)
        with ThreadPoolExecutor(MAX_PARALLEL, thread_name_prefix="stage") as pool:
            upload = lambda item: self._regional.put(item.key, copy.folder / item.key)  # noqa: E731
            for _ in pool.map(upload, missing):
                pass
        mark_complete(self._source, wanted, self._regional)
