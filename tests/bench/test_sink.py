"""The bucket of the benchmarks: what a saver commits by is kept, with its conditions."""

from __future__ import annotations

import json

import pytest

from bench import sink
from bench.uploads import bucket_env
from providers.stores import open_store
from providers.stores.base import ConflictError, NotFoundError


def test_small_objects_are_kept_and_large_ones_are_not() -> None:
    with sink.serving() as port:
        env = bucket_env(f"http://127.0.0.1:{port}")
        store = open_store(env["SPOTD_STORE_URL"], json.loads(env["SPOTD_STORE_OPTIONS"]))
        tag = store.put_if("HEAD", b"one", None)
        with pytest.raises(ConflictError):
            store.put_if("HEAD", b"two", None)
        newer = store.put_if("HEAD", b"two", tag)
        with pytest.raises(ConflictError):
            store.put_if("HEAD", b"three", tag)
        assert store.get("HEAD") == (b"two", newer)
        store.put("shard", bytes(40 << 20))
        with pytest.raises(NotFoundError):
            store.get("shard")
        assert list(store.list("")) == []
