"""Which copies of data sets have all of it, as far as the box can see."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectStore, StoreUnavailableError
from providers.stores.dataset_copy import MARKER
from spotd.domain.datasets import DataSet
from spotd.observe.dataset_copies import EVERY_S, DatasetCopies
from tests.fixtures.waiting import LIMIT_S, until


class Stores:
    """Folders; `away` do not answer. `opened` counts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.away, self.opened = folder, set[str](), 0

    def url(self, name: str) -> str:
        return f"file://{self.folder}/{name}"

    def stage(self, name: str) -> None:
        open_store(self.url(name), {}).put_if(MARKER, b"{}", None)

    def open(self, url: str) -> ObjectStore:
        self.opened += 1
        if url in self.away:
            raise StoreUnavailableError("it does not answer")
        return open_store(url, {})


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def declared(stores: Stores, size: int = 9) -> Mapping[str, DataSet]:
    copies = [stores.url(name) for name in ("one", "two", "three")]
    return {"corpus": DataSet(stores.url("home"), copies, 1, {}, size_bytes=size)}


def test_what_is_there_what_is_missing_and_what_cannot_be_seen(stores: Stores) -> None:
    stores.stage("one")
    stores.away.add(stores.url("three"))
    staged = DatasetCopies(lambda: declared(stores), stores.open)
    staged.look()
    data = staged.now()["corpus"]
    assert data.staged == {stores.url("one")}
    assert data.missing == {stores.url("two")}
    assert stores.opened == 3


def test_nobody_waits_and_it_is_looked_at_again(stores: Stores) -> None:
    """What is new in a store is known at the look after; between two looks nobody asks."""
    now_s = [0.0]
    staged = DatasetCopies(lambda: declared(stores), stores.open, lambda: now_s[0])
    assert staged.now()["corpus"].missing == frozenset(), "nobody has looked yet"
    until(lambda: len(staged.now()["corpus"].missing) == 3)
    stores.stage("two")
    asked = stores.opened
    staged.now()
    assert stores.opened == asked
    now_s[0] = EVERY_S
    until(lambda: staged.now()["corpus"].staged == {stores.url("two")})


def test_one_look_at_a_time(stores: Stores) -> None:
    held, begun = threading.Event(), threading.Event()

    def slow(url: str) -> ObjectStore:
        begun.set()
        held.wait(LIMIT_S)
        return stores.open(url)

    staged = DatasetCopies(lambda: declared(stores), slow)
    before = threading.active_count()
    for _ in range(5):
        staged.now()
    assert begun.wait(LIMIT_S)
    assert threading.active_count() == before + 1
    held.set()
    until(lambda: bool(staged.now()["corpus"].missing))


def test_of_what_has_no_size_nobody_asks(stores: Stores) -> None:
    staged = DatasetCopies(lambda: declared(stores, size=0), stores.open)
    staged.look()
    assert staged.now()["corpus"].missing == frozenset()
    assert stores.opened == 0
    assert DatasetCopies(dict, stores.open).now() == {}
