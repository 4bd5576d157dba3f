"""A data set is brought to a region once, for no more than it may cost."""

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
from providers.stores.dataset_copy import LEASE, MARKER, DatasetCopyError, is_data, is_whole
from providers.stores.local import LocalStore
from tests.fixtures.waiting import LIMIT_S
from trainer.mounts import stage
from trainer.mounts.byte_counter import counted
from trainer.mounts.copy import Copy, MountError
from trainer.mounts.stage import DatasetStaging, TransferPrice

DATA = {"a": os.urandom(1000), "x/y/b.bin": os.urandom(350), "empty": b""}
CHEAP, DEAR = TransferPrice(90_000, 1_000_000), TransferPrice(10**12, 1_000_000)


class Metered:
    """A store that counts what is read and written, and breaks off after `breaks_after` writes."""

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
def near(tmp_path: Path) -> Metered:
    return Metered(LocalStore(tmp_path / "near"))


def run_staging(
    source: Metered, near: Metered, folder: Path, fare: TransferPrice = CHEAP, **more: Any
) -> bool:
    def copy_of(store: ObjectStore) -> Copy:
        note = folder / ("near.json" if store is near else "source.json")
        return Copy(store, folder / "d", note, lambda _: None)

    more.setdefault("pause", lambda _: None)
    return DatasetStaging(source, near, fare, copy_of, **more).run()


def content(folder: Path) -> dict[str, bytes]:
    found = (path for path in (folder / "d").rglob("*") if path.is_file())
    return {str(path.relative_to(folder / "d")): path.read_bytes() for path in found}


def test_the_first_machine_brings_it_and_the_others_copy_there(
    source: Metered, near: Metered, tmp_path: Path
) -> None:
    said: list[str] = []
    assert run_staging(source, near, tmp_path / "1", say=said.append)
    assert said == [f"{source.url} is copied to {near.url}, once for this region"]
    assert content(tmp_path / "1") == DATA
    assert (source.read, near.read) == (1350, 0)
    assert json.loads(near.get(MARKER)[0]) == {"from": source.url, "objects": 3, "bytes": 1350}
    assert not run_staging(source, near, tmp_path / "2")
    assert content(tmp_path / "2") == DATA, "and no marker among it"
    assert (source.read, near.read) == (1350, 1350), "nothing crosses a second time"


def test_of_machines_that_come_at_once_one_brings_it(
    source: Metered, near: Metered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "POLL_S", 0.01)
    found: list[bool] = []
    pause = threading.Event().wait
    machines = [
        threading.Thread(
            target=lambda n=n: found.append(
                run_staging(source, near, tmp_path / str(n), pause=pause)
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
    source: Metered, near: Metered, tmp_path: Path
) -> None:
    """The lock is free again by then: whoever takes it looks once more."""

    class Late(Metered):
        def put_if(self, key: str, data: bytes, tag: str | None) -> str:
            if key == LEASE and not is_whole(near):
                assert run_staging(source, near, tmp_path / "first")
            return str(self._store.put_if(key, data, tag))

    late = Late(near)
    assert not run_staging(source, late, tmp_path / "second")
    assert source.read == 1350, "nothing crosses a second time"


def test_above_its_cap_nothing_crosses(source: Metered, near: Metered, tmp_path: Path) -> None:
    with pytest.raises(MountError, match=r"would cost \$1\.35 .* max_usd of \$1\.00"):
        run_staging(source, near, tmp_path / "1", DEAR)
    with pytest.raises(MountError, match=r"usd_per_gb"):
        run_staging(source, near, tmp_path / "1", TransferPrice(None, 1_000_000))
    assert (source.read, near.puts) == (0, [])


def gone() -> dict[str, Any]:
    """Each look is a long time after the one before: who has the lease is gone."""
    clock = iter(range(0, 10**6, 100))
    return {"monotonic": lambda: float(next(clock))}


def test_one_that_died_is_followed_by_another_which_sends_the_rest(
    source: Metered, near: Metered, tmp_path: Path
) -> None:
    near.breaks_after = 1
    with pytest.raises(StoreUnavailableError):
        run_staging(source, near, tmp_path / "1")
    assert len(near.puts) == 1
    near.breaks_after = 10**6
    assert run_staging(source, near, tmp_path / "2", **gone())
    assert sorted(near.puts) == sorted(DATA), "each of them once"
    assert not run_staging(source, near, tmp_path / "3")
    assert content(tmp_path / "3") == DATA


def test_what_arrives_otherwise_has_no_marker(
    source: Metered, near: Metered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = near._store.put
    monkeypatch.setattr(near._store, "put", lambda key, data: put(key, b"short"), raising=False)
    with pytest.raises(DatasetCopyError, match="did not arrive"):
        run_staging(source, near, tmp_path / "1")
    with pytest.raises(Exception, match=MARKER):
        near.get(MARKER)


def test_what_is_mounted_is_brought_through_memory_alone(
    source: Metered, near: Metered, tmp_path: Path
) -> None:
    assert DatasetStaging(source, near, CHEAP, None).run()
    assert {one.key: near.get(one.key)[0] for one in near.list("") if is_data(one)} == DATA
    assert not DatasetStaging(source, near, CHEAP, None).run()
    assert not (tmp_path / "d").exists()
    with pytest.raises(MountError, match="max_usd"):
        DatasetStaging(source, Metered(LocalStore(tmp_path / "other")), DEAR, None).run()


class Tagged(Metered):
    """Says of each object which version it is, as clouds do."""

    def list(self, prefix: str) -> list[ObjectInfo]:
        found = list(self._store.list(prefix))
        return [replace(one, tag=self._store.get(one.key)[0].hex()) for one in found]


@pytest.mark.parametrize("mounted", [True, False])
def test_what_changed_meanwhile_is_not_taken_for_the_same(
    source: Metered, near: Metered, tmp_path: Path, mounted: bool
) -> None:
    """Of the same name and size, in a copy that is half there."""
    source = Tagged(source._store)

    def try_it(number: int) -> None:
        if mounted:
            DatasetStaging(source, near, CHEAP, None, **gone(), pause=lambda _: None).run()
        else:
            run_staging(source, near, tmp_path / str(number), **gone())

    near.breaks_after = 1
    with pytest.raises(StoreUnavailableError):
        try_it(1)
    near.breaks_after = 10**6
    [sent] = near.puts
    for key, data in DATA.items():
        source._store.put(key, os.urandom(len(data)))
    for number in (2, 3):
        with pytest.raises(
            DatasetCopyError, match=f"changed since {near.url} was begun: empty that"
        ):
            try_it(number)
    with pytest.raises(NotFoundError):
        near.get(MARKER)
    near.delete(sent)
    try_it(4)
    there = {one.key: near.get(one.key)[0] for one in near.list("") if is_data(one)}
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
    words = [sys.executable, "-m", "trainer.mounts", str(tmp_path / "counts")]

    def run(**more: object) -> str:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
    assert counted(tmp_path / "counts") == there
    shutil.rmtree(tmp_path / "d")
    assert run() == ""
    assert content(tmp_path) == DATA
    assert counted(tmp_path / "counts") == there, "what the region's copy gives is free"
    assert "would cost" in run(near="", microusd_per_gb=10**12), "without a copy there, capped too"
    assert run(mode="MOUNT") == ""
    assert counted(tmp_path / "counts") == there
    assert run(mode="MOUNT", near=(tmp_path / "m").as_uri()) == "", "through memory"
    assert counted(tmp_path / "counts") == {("/data", source.url): 2700}
    assert "each read of it would cross" in run(near="", mode="MOUNT")
