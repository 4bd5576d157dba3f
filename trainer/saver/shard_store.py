"""Which store a machine's shards go to: the one of its own region, where the job has one there, and
the job's authority store while that one is away."""

from __future__ import annotations

from collections.abc import Callable

from providers.stores.base import ObjectStore, StoreError
from providers.stores.several import near_of, store_at

# A save that leaves the cloud may cost more than the minutes that it saves: a store that does not
# answer once is tried again first, and again after a while.
TRIES = 4
AGAIN_S = 300.0


class ShardTarget:
    """`store()` is the authority with the others beside it. `say(step, text)` is told when shards
    go elsewhere than they should."""

    def __init__(
        self,
        store: Callable[[], ObjectStore],
        say: Callable[[int, str], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._say, self._monotonic = say, monotonic
        self._failures, self._away_until_s = 0, 0.0

    def put(self, step: int, put: Callable[[ObjectStore, str], None], *, last: bool) -> None:
        """Have `put(store, url)` write all shards of a save to one store, which a manifest names as
        `url`. The `last` save of a machine has no time for tries. Raises what `put` does."""
        store = self._store()
        url = near_of(store)
        if url and self._monotonic() >= self._away_until_s:
            try:
                put(store_at(store, url), url)
            except (StoreError, OSError) as error:
                self._failures += 1
                if self._failures < TRIES and not last:
                    raise
                self._away_until_s = self._monotonic() + AGAIN_S
                text = f"{url} takes no shards ({type(error).__name__}: {error})"
                self._say(step, f"{text}: they go to {store.url} for now")
            else:
                self._failures = 0
                return
        put(store, "")
