"""Savers in this process, each with a connection from one training process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from providers.stores import open_store
from tests.trainer.saver.rig import Gate, Reads, Rig


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.saver.streams.CHUNK_BYTES", 4096)
    monkeypatch.setattr("trainer.saver.save_worker.FIRST_RETRY_S", 0.01)


@pytest.fixture
def store(tmp_path: Path) -> Gate:
    return Gate(open_store((tmp_path / "store").as_uri()))


@pytest.fixture
def reads(store: Gate, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(store, monkeypatch)


@pytest.fixture
def start(store: Gate, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def begin(generation: int, **options: object) -> Rig:
        made.append(Rig(tmp_path / f"{len(made)}.sock", store, generation, **options))
        return made[-1]

    yield begin
    store.open.set()
    for rig in made:
        rig.close()
