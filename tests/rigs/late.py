"""An object store in which one write of HEAD stays on the way, and lands before the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from providers.stores.base import ConflictError, ObjectStore, StoreUnavailableError
from spotd.wire import head_key


class LateStore:
    """In front of another store; everything but HEAD of `job_id` goes straight through."""

    def __init__(self, store: ObjectStore, job_id: str = "job") -> None:
        self._store = store
        self.url = store.url
        self._head = head_key(job_id)
        self._losing = False
        self._on_the_way: tuple[bytes, str | None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def losing(self) -> Iterator[None]:
        """The first write of HEAD is sent and not answered; then HEAD is out of reach."""
        self._losing = True
        try:
            yield
        finally:
            self._losing = False

    def get(self, key: str) -> tuple[bytes, str]:
        if self._losing and key == self._head:
            raise StoreUnavailableError("down")
        return self._store.get(key)

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        if key != self._head:
            return self._store.put_if(key, data, tag)
        if self._losing:
            self._on_the_way = self._on_the_way or (data, tag)
            raise StoreUnavailableError("no answer")
        if self._on_the_way is not None:
            late, self._on_the_way = self._on_the_way, None
            with suppress(ConflictError):
                self._store.put_if(key, *late)
        return self._store.put_if(key, data, tag)
