"""A store behind a slow link: many parallel uploads time out, few succeed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from providers.stores.base import StoreUnavailableError
from tests.trainer.saver.rig import Gate, Rig
from trainer.saver import save_worker as save_worker_module
from trainer.saver.rank_upload import (
    MAX_CONCURRENCY,
    SUCCESSES_BEFORE_INCREASE,
    UploadConcurrency,
)

SHARD = re.compile(r"/r\d{5}-\d{5}$")
MOST_IN_TIME = 2  # shards that share the link and are through before the store's limit


def test_a_link_that_is_too_slow_for_many_shards_at_once_takes_fewer(
    start: Callable[..., Rig], store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link fails by the number of parallel uploads, independent of the machine's speed."""
    limits: list[UploadConcurrency] = []

    class Noted(UploadConcurrency):
        def __init__(self) -> None:
            super().__init__()
            limits.append(self)

    put = store.put

    def slow_put(key: str, data: Any) -> None:
        if SHARD.search(key) and limits[-1].count > MOST_IN_TIME:
            raise StoreUnavailableError(f"{key}: operation timed out")
        put(key, data)

    monkeypatch.setattr(save_worker_module, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(save_worker_module, "UploadConcurrency", Noted)
    monkeypatch.setattr(store, "put", slow_put)
    rig = start(1)
    rig.save_and_wait(5)
    assert len(rig.steps("checkpoint_failed")) == 2, "with eight, with four; then two are through"
    rig.save_and_wait(6)
    assert len(rig.steps("checkpoint_failed")) == 2, "it is remembered from save to save"
    assert start(2).restore() == 6


def test_fewer_at_once_and_slowly_more_again() -> None:
    concurrency, seen = UploadConcurrency(), []
    for _ in range(5):
        seen.append(concurrency.count)
        concurrency.reduce()
    assert seen == [8, 4, 2, 1, 1]
    for _ in range(SUCCESSES_BEFORE_INCREASE - 1):
        concurrency.add_success()
    assert concurrency.count == 1
    concurrency.add_success()
    assert concurrency.count == 2
    for _ in range(100 * SUCCESSES_BEFORE_INCREASE):
        concurrency.add_success()
    assert concurrency.count == MAX_CONCURRENCY
