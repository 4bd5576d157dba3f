"""A simulated bucket, and the way to it from one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from providers.stores.base import (
    Body,
    ConflictError,
    NotFoundError,
    ObjectInfo,
    StoreError,
    StoreUnavailableError,
)
from tests.sim.net import Net

T = TypeVar("T")

LIMIT_S = 10.0  # what a client waits for an answer


class Bucket:
    """The other side: conditional writes with one winner. `moved(key, before, after)` hears of
    every write."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.away = False
        self.moved: Callable[[str, bytes | None, bytes], None] = lambda _key, _before, _after: None
        self._versions = 0

    def get(self, key: str) -> tuple[bytes, str]:
        self._answer()
        if key not in self.objects:
            raise NotFoundError(key)
        return self.objects[key]

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        """Raises ConflictError."""
        self._answer()
        known = self.objects.get(key)
        if (known[1] if known else None) != tag:
            raise ConflictError(key)
        return self._write(key, data)

    def put(self, key: str, data: bytes) -> None:
        self._answer()
        self._write(key, data)

    def delete(self, key: str) -> None:
        self._answer()
        self.objects.pop(key, None)

    def _write(self, key: str, data: bytes) -> str:
        before = self.objects.get(key)
        self._versions += 1
        self.objects[key] = data, f"v{self._versions}"
        self.moved(key, before[0] if before else None, data)
        return f"v{self._versions}"

    def _answer(self) -> None:
        if self.away:
            raise StoreUnavailableError("503 Slow Down")


class BucketClient:
    """`ObjectStore` for one process, over a network."""

    def __init__(self, bucket: Bucket, net: Net, reachable: Callable[[], bool]) -> None:
        self.url = bucket.url
        self._bucket = bucket
        self._net = net
        self._reachable = reachable

    def get(self, key: str) -> tuple[bytes, str]:
        return self._call(f"get {key}", lambda: self._bucket.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[0][start : start + length]

    def put(self, key: str, data: Body) -> None:
        whole = b"".join(data) if isinstance(data, Iterator) else data
        body = whole.read_bytes() if isinstance(whole, Path) else bytes(whole)
        self._call(f"put {key}", lambda: self._bucket.put(key, body))

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        return self._call(f"put_if {key}", lambda: self._bucket.put_if(key, data, tag))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found = self._call(f"list {prefix}", lambda: sorted(self._bucket.objects.items()))
        for key, (data, _) in found:
            if key.startswith(prefix):
                yield ObjectInfo(key, len(data))

    def delete(self, key: str) -> None:
        self._call(f"delete {key}", lambda: self._bucket.delete(key))

    def _call(self, what: str, act: Callable[[], T]) -> T:
        return self._net.call(
            what,
            "objects",
            act,
            limit_s=LIMIT_S,
            lost=StoreUnavailableError,
            errors=StoreError,
            reachable=self._reachable,
        )
