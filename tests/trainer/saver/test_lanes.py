"""A bucket behind a slow line: of many shards at once none is through in time, of fewer all are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from providers.stores.base import StoreUnavailableError
from tests.trainer.saver.rig import Gate, Rig
from trainer.saver import saving as saving_module
from trainer.saver.lanes import MOST, WIDER_AFTER, Lanes

SHARD_S, LIMIT_S = 0.01, 0.025  # what one shard takes alone; what the store gives a request


class SlowLine:
    """Shards on their way at once share it; one that is not through in time has failed."""

    def __init__(self, put: Callable[[str, Any], None]) -> None:
        self._put, self._turn, self._on_way = put, threading.Lock(), 0

    def put(self, key: str, data: Any) -> None:
        with self._turn:
            self._on_way += 1
        time.sleep(SHARD_S)  # whoever is sent with it has begun
        takes_s = SHARD_S * self._on_way
        time.sleep(SHARD_S)
        with self._turn:
            self._on_way -= 1
        if takes_s > LIMIT_S:
            raise StoreUnavailableError(f"{key}: operation timed out")
        self._put(key, data)


def test_a_line_that_is_too_slow_for_many_shards_at_once_takes_fewer(
    start: Callable[..., Rig], store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving_module, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(store, "put", SlowLine(store.put).put)
    rig = start(1)
    rig.save_and_wait(5)
    assert 1 <= len(rig.steps("checkpoint_failed")) <= 3, (
        "with six, with four; then two are through"
    )
    told = len(rig.steps("checkpoint_failed"))
    rig.save_and_wait(6)
    assert len(rig.steps("checkpoint_failed")) == told, "it is remembered from save to save"
    assert start(2).restore() == 6


def test_fewer_at_once_and_slowly_more_again() -> None:
    lanes, seen = Lanes(), []
    for _ in range(5):
        seen.append(lanes.count)
        lanes.narrow()
    assert seen == [8, 4, 2, 1, 1]
    for _ in range(WIDER_AFTER - 1):
        lanes.note_saved()
    assert lanes.count == 1
    lanes.note_saved()
    assert lanes.count == 2
    for _ in range(100 * WIDER_AFTER):
        lanes.note_saved()
    assert lanes.count == MOST
