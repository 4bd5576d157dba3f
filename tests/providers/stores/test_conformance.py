"""Conformance tests for every object store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from providers.stores.base import (
    ConflictError,
    NotFoundError,
    ObjectInfo,
    ObjectStore,
    StoreConfigError,
)
from tests.fixtures.waiting import LIMIT_S


@pytest.mark.req("CKP-33")
def test_an_object_comes_back_as_it_was_written(store: ObjectStore) -> None:
    store.put("a/b.bin", bytes(range(256)))
    assert store.get("a/b.bin")[0] == bytes(range(256))
    store.put("a/b.bin", b"")
    assert store.get("a/b.bin")[0] == b""


@pytest.mark.req("CKP-33")
def test_big_objects_and_files_and_views(store: ObjectStore, tmp_path: Path) -> None:
    big = bytes(range(256)) * (40 << 12)  # 40 MiB: more than two parts
    store.put("big", memoryview(bytearray(big))[1:])
    assert store.get("big")[0] == big[1:]
    path = tmp_path / "file"
    path.write_bytes(big[:100_000])
    store.put("file", path)
    assert store.get("file")[0] == big[:100_000]
    path.write_bytes(b"")
    store.put("file", path)
    assert store.get("file")[0] == b""


def test_pieces_make_one_object_and_pieces_that_end_with_an_error_none(store: ObjectStore) -> None:
    part = os.urandom(3 << 20)
    store.put("pieces", iter([part] * 7))
    assert store.get("pieces")[0] == part * 7

    def broken() -> Iterator[bytes]:
        yield from [part] * 7
        raise KeyError("not the store's")

    with pytest.raises(KeyError, match="not the store's"):
        store.put("broken", broken())
    with pytest.raises(NotFoundError):
        store.get("broken")


def test_ranges(store: ObjectStore) -> None:
    store.put("k", b"0123456789")
    assert store.get_range("k", 0, 3) == b"012"
    assert store.get_range("k", 7, 100) == b"789"
    assert store.get_range("k", 10, 5) == b""
    assert store.get_range("k", 99, 5) == b""
    assert store.get_range("k", 4, 0) == b""
    with pytest.raises(NotFoundError):
        store.get_range("missing", 0, 1)


def test_what_is_missing_is_said_to_be_missing(store: ObjectStore) -> None:
    store.put("folder/key", b"x")
    for key in ("missing", "folder", "folder/key2", "no/such/folder"):
        with pytest.raises(NotFoundError, match=key):
            store.get(key)
    store.delete("missing")
    store.delete("no/such/folder")


def test_create_only(store: ObjectStore) -> None:
    tag = store.put_if("HEAD", b"one", None)
    assert store.get("HEAD") == (b"one", tag)
    with pytest.raises(ConflictError):
        store.put_if("HEAD", b"two", None)
    assert store.get("HEAD") == (b"one", tag)


@pytest.mark.req("CKP-33")
def test_compare_and_swap(store: ObjectStore) -> None:
    first = store.put_if("HEAD", b"one", None)
    second = store.put_if("HEAD", b"two", first)
    assert second != first
    with pytest.raises(ConflictError):
        store.put_if("HEAD", b"three", first)
    assert store.get("HEAD") == (b"two", second)
    with pytest.raises(ConflictError):
        store.put_if("other", b"three", first)
    store.delete("HEAD")
    with pytest.raises(ConflictError):
        store.put_if("HEAD", b"three", second)
    with pytest.raises(NotFoundError):
        store.get("HEAD")


def test_a_listing_has_the_time_of_the_last_write(store: ObjectStore) -> None:
    before_us = time.time_ns() // 1000
    store.put("a/b", b"1")
    (info,) = store.list("a/")
    after_us = time.time_ns() // 1000
    # Some stores keep whole seconds.
    assert before_us - 1_000_000 <= info.modified_us <= after_us


def test_delete_then_create(store: ObjectStore) -> None:
    store.put("a/b/c", b"1")
    store.put("a/d", b"2")
    store.delete("a/b/c")
    assert [info.key for info in store.list("")] == ["a/d"]
    store.put("a/b/c", b"3")
    assert store.get("a/b/c")[0] == b"3"


def test_list_is_by_prefix_and_in_key_order(store: ObjectStore) -> None:
    keys = ["a-b", "a.b/x", "a/b", "a/c/d", "a/c1", "aa", "b"]
    for key in reversed(keys):
        store.put(key, key.encode())
    assert list(store.list("")) == [ObjectInfo(key, len(key)) for key in sorted(keys)]
    assert [info.key for info in store.list("a/")] == ["a/b", "a/c/d", "a/c1"]
    assert [info.key for info in store.list("a/c")] == ["a/c/d", "a/c1"]
    assert [info.key for info in store.list("a/c/")] == ["a/c/d"]
    assert list(store.list("c")) == []
    assert list(store.list("no/such/")) == []


@pytest.mark.req("CKP-21")
def test_list_has_no_page_limit(store: ObjectStore) -> None:
    count = 1001  # one more than a page of most has
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: store.put(f"many/{n:05d}", b"x"), range(count)))
    assert [info.key for info in store.list("many/")] == [f"many/{n:05d}" for n in range(count)]


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a b", "a\n", ".store/lock", "ä", "a/" * 600],
)
def test_keys_that_no_store_takes(store: ObjectStore, key: str) -> None:
    for call in (
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.put(key, b""),
        lambda: store.put_if(key, b"", None),
        lambda: store.delete(key),
    ):
        with pytest.raises(StoreConfigError):
            call()


def test_a_race_has_exactly_one_winner(store: ObjectStore) -> None:
    rounds, racers = 25, 8
    barrier = threading.Barrier(racers)
    won: list[list[int]] = [[] for _ in range(rounds)]

    def race(racer: int) -> None:
        for round_number in range(rounds):
            barrier.wait(LIMIT_S)
            tag = store.get("HEAD")[1] if round_number else None
            barrier.wait(LIMIT_S)
            try:
                store.put_if("HEAD", f"{round_number} of {racer}".encode(), tag)
            except ConflictError:
                continue
            won[round_number].append(racer)

    with ThreadPoolExecutor(racers) as pool:
        list(pool.map(race, range(racers)))
    assert [len(winners) for winners in won] == [1] * rounds
    assert store.get("HEAD")[0] == f"{rounds - 1} of {won[-1][0]}".encode()
