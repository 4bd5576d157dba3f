"""A box that brings a data set ahead: `python -m tests.spotd.act.staging_box FILE` does it with
what FILE says, until it is killed or all is there."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from providers.catalogs.egress import first_tier_prices
from providers.stores import dataset_copy
from providers.stores import open_store as open_objects
from providers.stores.base import ObjectStore
from spotd.act.dataset_prefetch import DatasetPrefetch
from spotd.base.clock import Clock, SystemClock
from spotd.domain.datasets import DataSet
from spotd.domain.fast_replace import changed
from spotd.domain.market import Market
from spotd.observe.storage_costs import record_job
from spotd.store.interface import Store
from spotd.store.sql_store import open_store
from tests.fixtures.waiting import LIMIT_S

NAME = "corpus"
GB_MICROUSD = 10**12  # so that a byte is $0.001


@dataclass
class Setting:
    """Where a data set is, and its copies; where each store is, and with what it is opened."""

    url: str
    copies: list[str]
    places: dict[str, tuple[str, ...]]
    size_bytes: int
    options: dict[str, dict[str, str]] = field(default_factory=dict)
    max_microusd: int = 10**12
    bytes_per_s: int = 10**9

    def data(self, staged: frozenset[str] = frozenset(), box: int | None = 0) -> DataSet:
        return DataSet(
            self.url,
            self.copies,
            self.max_microusd,
            first_tier_prices(),
            GB_MICROUSD,
            self.size_bytes,
            staged,
            frozenset(self.copies) - staged,
            box,
        )

    def open(self, url: str) -> ObjectStore:
        return open_objects(url, self.options.get(url, {}))


class Counted:
    """A store that counts what is read of it, and tells of what is about to be written."""

    def __init__(self, store: ObjectStore, on_put: Callable[[str], None]) -> None:
        self._store, self._on_put, self.url = store, on_put, store.url
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self._store.get_range(key, start, length)
        self.read += len(data)
        return data

    def put(self, key: str, data: Any) -> None:
        self._on_put(key)
        self._store.put(key, data)


class Box:
    """What of the daemon brings data ahead, over a store of records."""

    def __init__(
        self,
        setting: Setting,
        store: Store,
        clock: Clock,
        on_put: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.setting, self.store, self.clock = setting, store, clock
        self.staged: set[str] = set()
        self.box_microusd_per_gb: int | None = 0
        self.contested, self.safe_until_us = "", 0
        self._on_put = on_put
        self.opened: dict[str, Counted] = {}
        self.ahead = self.again()

    def again(self) -> DatasetPrefetch:
        """As after a new start of the daemon."""
        return DatasetPrefetch(
            market=self.market,
            open_store=self.open,
            clock=self.clock,
            bytes_per_s=lambda: self.setting.bytes_per_s,
            note=self.staged.add,
            reckon=lambda store, job: record_job(
                store, job, self.setting.places, self.clock.now_us()
            ),
            contested=lambda: self.contested,
        )

    def open(self, url: str) -> ObjectStore:
        if url not in self.opened:
            self.opened[url] = Counted(self.setting.open(url), self._on_put)
        return self.opened[url]  # type: ignore[return-value]

    def market(self) -> Market:
        known = self.setting.data(frozenset(self.staged), self.box_microusd_per_gb)
        found = self.store.market.load(self.clock.now_us())
        places: Mapping[str, tuple[str, ...]] = self.setting.places
        found = changed(found, safe_until_us=self.safe_until_us)
        return changed(
            found, places=places, datasets={NAME: known}, egress_microusd_per_gb=first_tier_prices()
        )

    def look(self) -> None:
        """One look, until what it began has ended."""
        self.ahead.look(self.store)
        self.ahead.wait(LIMIT_S)


def main(path: str) -> None:
    said = json.loads(Path(path).read_text())
    setting = Setting(**said["setting"])
    setting.places = {url: tuple(place) for url, place in setting.places.items()}
    now = SystemClock().now_us
    store = open_store(said["database"], now=now, notify=lambda: None, deployment_factory=str)
    dataset_copy.BATCH_FILES = 1
    puts = itertools.count()

    def on_put(_key: str) -> None:
        if next(puts) == said["held"]:
            print("held", flush=True)
            threading.Event().wait()

    Box(setting, store, SystemClock(), on_put).look()


if __name__ == "__main__":
    main(sys.argv[1])
