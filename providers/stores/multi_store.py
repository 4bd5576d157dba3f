"""A job's authority store together with the stores that hold its shards.

The *authority* holds HEAD, pins and manifests; each shard store is in the region of the machines
that wrote to it. A manifest names the store of a shard by its URL, "" for the authority. A URL in a
manifest is opened only if the reader's own configuration lists it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from providers.stores.base import Body, ObjectInfo, ObjectStore, StoreDeniedError


class MultiStore:
    """A job's stores. As an ObjectStore it is the authority alone.

    `others` maps the URL of each other store to a function that opens it on first use.
    `shard_url` is the URL of the store for new shards, "" for the authority. Thread-safe.
    """

    def __init__(
        self,
        authority: ObjectStore,
        others: Mapping[str, Callable[[], ObjectStore]],
        shard_url: str = "",
    ) -> None:
        self.url, self.shard_url = authority.url, shard_url
        self._authority, self._others = authority, dict(others)
        self._opened: dict[str, ObjectStore] = {}
        self._lock = threading.Lock()

    @property
    def other_urls(self) -> tuple[str, ...]:
        """URLs of the stores other than the authority."""
        return tuple(self._others)

    def at(self, url: str) -> ObjectStore:
        """Open the store at `url`, "" for the authority. Raises StoreDeniedError if this job has no
        such store, and StoreConfigError."""
        if not url:
            return self._authority
        if url not in self._others:
            raise _unknown(url)
        with self._lock:
            if url not in self._opened:
                self._opened[url] = self._others[url]()
            return self._opened[url]

    def get(self, key: str) -> tuple[bytes, str]:
        return self._authority.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._authority.get_range(key, start, length)

    def put(self, key: str, data: Body) -> None:
        self._authority.put(key, data)

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        return self._authority.put_if(key, data, tag)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._authority.list(prefix)

    def delete(self, key: str) -> None:
        self._authority.delete(key)


def store_at(store: ObjectStore, url: str) -> ObjectStore:
    """Open the shard store that a manifest in `store` names. Raises StoreDeniedError if the job has
    no such store, and StoreConfigError."""
    if isinstance(store, MultiStore):
        return store.at(url)
    if url:
        raise _unknown(url)
    return store


def shard_store_url(store: ObjectStore) -> str:
    """URL of the store that new shards go to; "" for `store` itself."""
    return store.shard_url if isinstance(store, MultiStore) else ""


def other_store_urls(store: ObjectStore) -> tuple[str, ...]:
    """URLs of the stores other than the authority."""
    return store.other_urls if isinstance(store, MultiStore) else ()


def _unknown(url: str) -> StoreDeniedError:
    return StoreDeniedError(
        f"shards are in {url}, which is not one of this job's stores: add it to checkpoint.shards, "
        "or keep a [stores] section with that url and shards = true (and access for machines) "
        "until a newer checkpoint is stored elsewhere"
    )
