"""Staging a data set once per region, within the price limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from providers.stores.base import NotFoundError, ObjectInfo, ObjectStore, StoreUnavailableError
from providers.stores.dataset_copy import LEASE, MARKER, DatasetCopyError, is_complete, is_data
from providers.stores.local import LocalStore
from tests.fixtures.waiting import LIMIT_S
from trainer.mounts import stage
from trainer.mounts.byte_counter import read_counts
from trainer.mounts.copy import Copy, MountError
from trainer.mounts.stage import DatasetStaging, TransferPrice

DATA = {"a": os.urandom(1000), "x/y/b.bin": os.urandom(350), "empty": b""}
CHEAP, DEAR = TransferPrice(90_000, 1_000_000), TransferPrice(10**12, 1_000_000)


class Metered:
    """A store that counts bytes and writes, and fails after `breaks_after` writes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self.url = store, store.url
        self.read = self.written = 0
        self.puts: list[str] = []
        self._lock = threading.Lock()
        self.breaks_after = 10**6

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self._store.get_range(key, start, length)
        self.read += len(data)
        return data

    def put(self, key: str, data: Path) -> None:
        with self._lock:
            if len(self.puts) >= self.breaks_after:
                raise StoreUnavailableError("the line broke")
            self.puts.append(key)
        self._store.put(key, data)


@pytest.fixture
def source(tmp_path: Path) -> Metered:
    store = LocalStore(tmp_path / "source")
    for key, data in DATA.items():
        store.put(key, data)
    return Metered(store)


@pytest.fixture
def regional(tmp_path: Path) -> Metered:
    return Metered(LocalStore(tmp_path / "near"))


def run_staging(
    source: Metered, regional: Metered, folder: Path, price: TransferPrice = CHEAP, **more: Any
) -> bool:
    def make_copy(store: ObjectStore) -> Copy:
        note = folder / ("near.json" if store is regional else "source.json")
        return Copy(store, folder / "d", note, lambda _: None)

    more.setdefault("sleep", lambda _: None)
    return DatasetStaging(source, regional, price, make_copy, **more).run()


def content(folder: Path) -> dict[str, bytes]:
    found = (path for path in (folder / "d").rglob("*") if path.is_file())
    return {str(path.relative_to(folder / "d")): path.read_bytes() for path in found}


def test_the_first_machine_brings_it_and_the_others_copy_there(
    source: Metered, regional: Metered, tmp_path: Path
) -> None:
    messages: list[str] = []
    assert run_staging(source, regional, tmp_path / "1", log=messages.append)
    assert messages == [f"{source.url} is copied to {regional.url}, once for this region"]
    assert content(tmp_path / "1") == DATA
    assert (source.read, regional.read) == (1350, 0)
    assert json.loads(regional.get(MARKER)[0]) == {"from": source.url, "objects": 3, "bytes": 1350}
    assert not run_staging(source, regional, tmp_path / "2")
    assert content(tmp_path / "2") == DATA, "and no marker among it"
    assert (source.read, regional.read) == (1350, 1350), "nothing crosses a second time"


def test_of_machines_that_come_at_once_one_brings_it(
    source: Metered, regional: Metered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "POLL_S", 0.01)
    found: list[bool] = []
    pause = threading.Event().wait
    machines = [
        threading.Thread(
            target=lambda n=n: found.append(
                run_staging(source, regional, tmp_path / str(n), sleep=pause)
            )
        )
        for n in range(4)
    ]
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join(LIMIT_S)
    assert sorted(found) == [False, False, False, True]
    assert source.read == 1350
    assert [content(tmp_path / str(n)) for n in range(4)] == [DATA] * 4


def test_one_that_another_machine_finishes_just_before_the_lock_is_not_brought_again(
    source: Metered, regional: Metered, tmp_path: Path
) -> None:
    """The lock is free again by then: whoever takes it looks once more."""

    class Late(Metered):
        def put_if(self, key: str, data: bytes, tag: str | None) -> str:
            if key == LEASE and not is_complete(regional):
                assert run_staging(source, regional, tmp_path / "first")
            return str(self._store.put_if(key, data, tag))

    late = Late(regional)
    assert not run_staging(source, late, tmp_path / "second")
    assert source.read == 1350, "nothing crosses a second time"


def test_above_its_cap_nothing_crosses(source: Metered, regional: Metered, tmp_path: Path) -> None:
    with pytest.raises(MountError, match=r"would cost \$1\.35, more than its max_usd of \$1\.00"):
        run_staging(source, regional, tmp_path / "1", DEAR)
    with pytest.raises(MountError, match=r"usd_per_gb"):
        run_staging(source, regional, tmp_path / "1", TransferPrice(None, 1_000_000))
    assert (source.read, regional.puts) == (0, [])


def gone() -> dict[str, Any]:
    """A clock that jumps with each call, so that leases expire at once."""
    clock = iter(range(0, 10**6, 100))
    return {"monotonic": lambda: float(next(clock))}


def test_one_that_died_is_followed_by_another_which_sends_the_rest(
    source: Metered, regional: Metered, tmp_path: Path
) -> None:
    regional.breaks_after = 1
    with pytest.raises(StoreUnavailableError):
        run_staging(source, regional, tmp_path / "1")
    assert len(regional.puts) == 1
    regional.breaks_after = 10**6
    assert run_staging(source, regional, tmp_path / "2", **gone())
    assert sorted(regional.puts) == sorted(DATA), "each of them once"
    assert not run_staging(source, regional, tmp_path / "3")
    assert content(tmp_path / "3") == DATA


def test_what_arrives_otherwise_has_no_marker(
    source: Metered, regional: Metered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = regional._store.put
    monkeypatch.setattr(regional._store, "put", lambda key, data: put(key, b"short"), raising=False)
    with pytest.raises(DatasetCopyError, match="is missing or has another size"):
        run_staging(source, regional, tmp_path / "1")
    with pytest.raises(Exception, match=MARKER):
        regional.get(MARKER)


def test_what_is_mounted_is_brought_through_memory_alone(
    source: Metered, regional: Metered, tmp_path: Path
) -> None:
    assert DatasetStaging(source, regional, CHEAP, None).run()
    assert {
        item.key: regional.get(item.key)[0] for item in regional.list("") if is_data(item)
    } == DATA
    assert not DatasetStaging(source, regional, CHEAP, None).run()
    assert not (tmp_path / "d").exists()
    with pytest.raises(MountError, match="max_usd"):
        DatasetStaging(source, Metered(LocalStore(tmp_path / "other")), DEAR, None).run()


class Tagged(Metered):
    """Says of each object which version it is, as clouds do."""

    def list(self, prefix: str) -> list[ObjectInfo]:
        found = list(self._store.list(prefix))
        return [replace(item, tag=self._store.get(item.key)[0].hex()) for item in found]


@pytest.mark.parametrize("mounted", [True, False])
def test_what_changed_meanwhile_is_not_taken_for_the_same(
    source: Metered, regional: Metered, tmp_path: Path, mounted: bool
) -> None:
    """Of the same name and size, in a copy that is half there."""
    source = Tagged(source._store)

    def try_it(number: int) -> None:
        if mounted:
            DatasetStaging(source, regional, CHEAP, None, **gone(), sleep=lambda _: None).run()
        else:
            run_staging(source, regional, tmp_path / str(number), **gone())

    regional.breaks_after = 1
    with pytest.raises(StoreUnavailableError):
        try_it(1)
    regional.breaks_after = 10**6
    [sent] = regional.puts
    for key, data in DATA.items():
        source._store.put(key, os.urandom(len(data)))
    for number in (2, 3):
        with pytest.raises(
            DatasetCopyError, match=f"changed since the copy to {regional.url} started: delete that"
        ):
            try_it(number)
    with pytest.raises(NotFoundError):
        regional.get(MARKER)
    regional.delete(sent)
    try_it(4)
    there = {item.key: regional.get(item.key)[0] for item in regional.list("") if is_data(item)}
    assert there == {key: source.get(key)[0] for key in DATA}


def test_the_process_beside_the_agent_does_it(source: Metered, tmp_path: Path) -> None:
    order = {
        "target": "/data",
        "url": source.url,
        "options": {},
        "near": (tmp_path / "n").as_uri(),
        "near_options": {},
        "microusd_per_gb": 90_000,
        "max_microusd": 1_000_000,
        "folder": str(tmp_path / "d"),
        "note": str(tmp_path / "note.json"),
    }
    argv = [sys.executable, "-m", "trainer.mounts", str(tmp_path / "counts")]

    def run(**more: object) -> str:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([{**order, **more}]) + "\n")
            process.stdin.flush()
            return process.stdout.read()

    assert run() == ""
    assert content(tmp_path) == DATA
    assert LocalStore(tmp_path / "n").get(MARKER)
    there = {("/data", source.url): 1350}
    assert read_counts(tmp_path / "counts") == there
    shutil.rmtree(tmp_path / "d")
    assert run() == ""
    assert content(tmp_path) == DATA
    assert read_counts(tmp_path / "counts") == there, "what the region's copy gives is free"
    assert "would cost" in run(near="", microusd_per_gb=10**12), "without a copy there, capped too"
    assert run(mode="MOUNT") == ""
    assert read_counts(tmp_path / "counts") == there
    assert run(mode="MOUNT", near=(tmp_path / "m").as_uri()) == "", "through memory"
    assert read_counts(tmp_path / "counts") == {("/data", source.url): 2700}
    assert "each read would transfer it" in run(near="", mode="MOUNT")
