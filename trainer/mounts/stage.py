"""A data set in a store of this machine's own region, brought there once (providers/stores/
bringing.py).

The first machine that wants it copies it here from where it is declared, puts that copy into the
region's store, and leaves the marker; those after it copy from there. What is mounted passes
through memory instead: it need not fit the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from providers.stores.base import ObjectStore
from providers.stores.dataset_copy import CopyLock, begin, bring, data_of, finish, is_whole, lacking
from trainer.mounts.copy import AT_ONCE, Copy, MountError, Pause

POLL_S = 5.0


@dataclass(frozen=True)
class TransferPrice:
    """What it costs to bring a data set over. `microusd_per_gb` None: nobody's price is known."""

    microusd_per_gb: int | None
    max_microusd: int

    def check(self, url: str, size: int) -> None:
        """Raises MountError above the cap."""
        if self.microusd_per_gb is None:
            raise MountError(
                f"what {size / 1e9:.3g} GB of {url} cost on their way here is on no list: say "
                "usd_per_gb in its [datasets.NAME], or let the job run beside the data"
            )
        cost = size / 1e9 * self.microusd_per_gb
        if cost > self.max_microusd:
            raise MountError(
                f"{size / 1e9:.3g} GB of {url} would cost ${cost / 1e6:.2f} on their way here, "
                f"more than its max_usd of ${self.max_microusd / 1e6:.2f}: raise that, or let the "
                "job run beside the data"
            )


class DatasetStaging:
    """Of `source` into `near`, and here by `copy_of`; into `near` alone without it.
    `say(text)` hears what is being done, and `came(size)` of what is brought from `source` through
    memory; a copy tells that by itself."""

    def __init__(
        self,
        source: ObjectStore,
        near: ObjectStore,
        fare: TransferPrice,
        copy_of: Callable[[ObjectStore], Copy] | None,
        say: Callable[[str], None] = lambda _text: None,
        came: Callable[[int], None] = lambda _size: None,
        *,
        pause: Pause = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._near, self._fare = source, near, fare
        self._copy_of, self._say = copy_of, say
        self._came, self._pause = came, pause
        self._turn = CopyLock(near, monotonic)

    def run(self) -> bool:
        """Have all of it there; whether it was staged now, by us. Raises BringError, MountError,
        StoreError, OSError; run again, it goes on where it was."""
        if not is_whole(self._near):
            self._fare.check(self._source.url, sum(one.size for one in data_of(self._source)))
        while not is_whole(self._near):
            if not self._turn.take():
                self._pause(POLL_S)
                continue
            with self._turn.kept():
                if not is_whole(self._near):  # another machine may have just finished
                    self._transfer()
                    return True
        if self._copy_of is not None:
            self._copy_of(self._near).run()
        return False

    def _transfer(self) -> None:
        """Copy the data set from its source to the region's store; the caller holds the lock."""
        self._say(f"{self._source.url} is copied to {self._near.url}, once for this region")
        if self._copy_of is None:
            bring(self._source, self._near, came=self._came)
        else:
            self._send(self._copy_of(self._source))

    def _send(self, copy: Copy) -> None:
        """What is not in the region's store yet, from here; then the marker, when all of it is."""
        wanted = data_of(self._source)
        begin(self._source, wanted, self._near)
        copy.run()
        missing = lacking(wanted, self._near)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="stage") as pool:
            for _ in pool.map(lambda one: self._near.put(one.key, copy.folder / one.key), missing):
                pass
        finish(self._source, wanted, self._near)
