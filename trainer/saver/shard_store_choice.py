"""Choose the store for a machine's shards.

It is the store in the machine's own region if the job has one there, and the job's authority store
while that one does not answer.
"""

from __future__ import annotations

from collections.abc import Callable

from providers.stores.base import ObjectStore, StoreError
from providers.stores.multi_store import shard_store_url, store_at

# Writing to another cloud may cost more than the delay: a store that does not answer is retried a
# few times first, and used again after a while.
MAX_FAILURES = 4
RETRY_AFTER_S = 300.0


class ShardStoreChooser:
    """Chooses the store for each save.

    `store()` returns the authority store with the others beside it. `report(step, message)` is
    called when shards go to another store than intended.
    """

    def __init__(
        self,
        store: Callable[[], ObjectStore],
        report: Callable[[int, str], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._report, self._monotonic = report, monotonic
        self._failures, self._away_until_s = 0, 0.0

    def put(self, step: int, put: Callable[[ObjectStore, str], None], *, last: bool) -> None:
        """Call `put(store, url)` to write all shards of a save to one store.

        The manifest names the store as `url`. The `last` save of a machine has no time for retries.
        Raises what `put` raises.
        """
        store = self._store()
        url = shard_store_url(store)
        if url and self._monotonic() >= self._away_until_s:
            try:
                put(store_at(store, url), url)
            except (StoreError, OSError) as error:
                self._failures += 1
                if self._failures < MAX_FAILURES and not last:
                    raise
                self._away_until_s = self._monotonic() + RETRY_AFTER_S
                text = f"{url} takes no shards ({type(error).__name__}: {error})"
                self._report(step, f"{text}: they go to {store.url} for now")
            else:
                self._failures = 0
                return
        put(store, "")
