"""A job's stores taken together: the one that has HEAD, pins and manifests, its *authority*, and
those that shards lie in, each in the region of the machines that wrote there.

A manifest names the store of a shard by its URL, "" being the authority. Nobody opens a URL because
a manifest names it: whoever reads has a list of those that it may open, and with what.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from providers.stores.base import Body, ObjectInfo, ObjectStore, StoreDeniedError


class SeveralStores:
    """As an ObjectStore, the authority alone. `others` opens each of the other stores by its URL,
    when it is first asked for; `near` is the URL of the one that our own shards go to, "" for the
    authority. Safe to use from several threads."""

    def __init__(
        self,
        authority: ObjectStore,
        others: Mapping[str, Callable[[], ObjectStore]],
        near: str = "",
    ) -> None:
        self.url, self.near = authority.url, near
        self._authority, self._others = authority, dict(others)
        self._opened: dict[str, ObjectStore] = {}
        self._lock = threading.Lock()

    @property
    def others(self) -> tuple[str, ...]:
        """The URLs of the stores beside the authority."""
        return tuple(self._others)

    def at(self, url: str) -> ObjectStore:
        """The store of that URL, "" being the authority. Raises StoreDeniedError for one that is
        not ours to open, and StoreConfigError."""
        if not url:
            return self._authority
        if url not in self._others:
            raise _unknown(url)
        with self._lock:
            if url not in self._opened:
                self._opened[url] = self._others[url]()
            return self._opened[url]

    def get(self, key: str) -> tuple[bytes, str]:
        """As of ObjectStore, and so are the others."""
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
    """The store of a shard that a manifest in `store` names. Raises StoreDeniedError for one that
    is not ours to open, and StoreConfigError."""
    if isinstance(store, SeveralStores):
        return store.at(url)
    if url:
        raise _unknown(url)
    return store


def near_of(store: ObjectStore) -> str:
    """The URL of the store that our own shards go to; "" is `store` itself."""
    return store.near if isinstance(store, SeveralStores) else ""


def others_of(store: ObjectStore) -> tuple[str, ...]:
    """The URLs of the stores beside the authority."""
    return store.others if isinstance(store, SeveralStores) else ()


def _unknown(url: str) -> StoreDeniedError:
    return StoreDeniedError(
        f"shards lie in {url}, which is not among this job's stores: name it in checkpoint.shards, "
        "or have a [stores] section with that url and shards = true (and a right for machines "
        "there), until a newer checkpoint lies elsewhere"
    )
