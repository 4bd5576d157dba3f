"""A saver with a connected training process, on a store that can block, refuse and lie."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from providers.stores.base import Body, ObjectStore, StoreUnavailableError
from spotd.wire import Head
from tests.fixtures.waiting import LIMIT_S
from trainer.fence import read_head
from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.engine import Engine
from trainer.hook.spotd_hook.saver_client import CorruptError, SaverClient
from trainer.saver.client_session import ClientSession
from trainer.saver.service import SaverConfig, SaverService
from trainer.saver.socket_server import SocketServer

SIZE = 5 * 4096 + 100
CHUNKS = -(-SIZE // 4096)
COUNT = SIZE // 4
PIECES = [
    {
        "name": "w",
        "dtype": "float32",
        "shape": [COUNT],
        "at": [0],
        "block": [COUNT],
        "offset": 0,
    }
]
CONFIG = {"width": 8, "data": "xxh3:0"}


def pieces_of(size: int) -> list[dict[str, Any]]:
    """Return the layout of one tensor as large as fits."""
    return [{**PIECES[0], "shape": [size // 4], "block": [size // 4]}]


_NAMES = itertools.count()


class Gate:
    """A store whose puts can be blocked, refused and counted."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.url = store.url
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.refusing = 0
        self.deleted: list[str] = []
        self.down = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> tuple[bytes, str]:
        if self.down:
            raise StoreUnavailableError("down")
        return self._store.get(key)

    def put(self, key: str, data: Body) -> None:
        self.entered.set()
        assert self.open.wait(LIMIT_S)
        if self.refusing > 0:
            self.refusing -= 1
            raise StoreUnavailableError("the line is down")
        self._store.put(key, data)

    def delete(self, key: str) -> None:
        self._store.delete(key)
        self.deleted.append(key)


class Rig:
    """One generation's saver with its reports, and one rank that has claimed HEAD."""

    def __init__(
        self,
        path: Path,
        store: Any,
        generation: int,
        *,
        keep: int = 3,
        size: int = SIZE,
        local: str = "",
        claim: bool = True,
        join: bool = True,
        keep_every_steps: int = 0,
        suspect: str = "",
        shards: str = "",
        others: Mapping[str, ObjectStore] | None = None,
    ) -> None:
        self._changed = threading.Condition()
        self.path, self.size = path, size
        self.reports: list[tuple[str, Mapping[str, Any]]] = []
        config = SaverConfig(
            socket=str(path),
            job_id="job",
            generation=generation,
            token=f"node{generation}",
            store_url="file:///nowhere",
            keep=keep,
            keep_every_steps=keep_every_steps,
            suspect=suspect,
            local=local,
            shards=shards,
            others={url: {} for url in others or {}},
        )
        stores = {config.store_url: store, **(others or {})}
        self.service = SaverService(config, self.note, open_store=lambda url, _: stores[url])
        self.server = SocketServer(path, lambda: ClientSession(self.service))
        if not join:
            return
        self.engine = self.connect()
        if claim:
            assert self.engine.claim() is not None

    def connect(self, pieces: list[dict[str, Any]] | None = None) -> Engine:
        """Connect another training process."""
        engine = Engine(
            SaverClient(str(self.path)),
            job="job",
            generation=self.service.config.generation,
            name=f"n{next(_NAMES):x}x",
            rank=0,
            ranks=[0],
            world_size=1,
        )
        engine.open(pieces or pieces_of(self.size), self.size)
        return engine

    def checkpointer(self) -> Checkpointer:
        """Return a checkpointer that has claimed HEAD, as a training program has."""
        checkpointer = Checkpointer(
            lambda: SaverClient(str(self.path)),
            job_id="job",
            generation=self.service.config.generation,
            pieces=pieces_of(self.size),
            size=self.size,
            report=self.note,
        )
        assert checkpointer.claim("now", 0.0) is not None
        return checkpointer

    def close(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
        self.server.close()
        self.service.close()

    def note(self, kind: str, data: Mapping[str, Any]) -> None:
        with self._changed:
            self.reports.append((kind, data))
            self._changed.notify_all()

    def wait(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, LIMIT_S), self.reports

    def save(self, step: int, trigger: str = "test", **flags: bool) -> bool:
        return self.engine.save(
            step,
            lambda memory, _: fill(memory, step),
            {"config": CONFIG},
            trigger=trigger,
            **flags,
        )

    def save_and_wait(self, step: int, **flags: bool) -> None:
        assert self.save(step, **flags)
        assert self.engine.drain(LIMIT_S)

    def abandoned(self) -> bool:
        """Return whether the running save is abandoned."""
        writing = self.service.worker._writing
        return writing is not None and writing.abandoned

    def steps(self, kind: str) -> list[int]:
        return [data["step"] for report_kind, data in self.reports if report_kind == kind]

    def restore(self, config: Mapping[str, Any] = CONFIG, back: int = 0) -> int | None:
        """Return the restored step after checking its bytes."""
        found = self.engine.resume(config, back=back)
        while found is not None:
            try:
                memory, _ = self.engine.fetch([(0, 0, self.size)])
            except CorruptError as error:
                found = self.engine.skip(str(error), config)
                continue
            expected = bytearray(self.size)
            fill(memoryview(expected), found.step)
            assert bytes(memory) == bytes(expected)
            self.engine.confirm_resume()
            return found.step
        return None


def fill(memory: memoryview, step: int) -> None:
    memory[:] = random.Random(step).randbytes(len(memory))


def head_of(store: Any) -> Head:
    entry = read_head(store, "job")
    assert entry is not None
    return entry[0]


def stored_steps(store: Any) -> list[int]:
    keys = [info.key for info in store.list("jobs/job/g")]
    return sorted({int(key.split("/")[3][1:13]) for key in keys})


class Reads:
    """Counts reads of the read-back, and blocks them while `open` is not set."""

    def __init__(self, store: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.count, self.pause_s = threading.Event(), 0, 0.0
        self.open.set()
        self._store = store._store
        monkeypatch.setattr(store, "get_range", self._get_range, raising=False)

    def _get_range(self, key: str, start: int, length: int) -> bytes:
        self.count += 1
        time.sleep(self.pause_s)
        assert self.open.wait(LIMIT_S)
        return self._store.get_range(key, start, length)


def save(rig: Rig, step: int) -> None:
    """Save without a waiting training process."""
    assert rig.save(step)
    rig.wait(lambda: step in rig.steps("checkpoint"))
