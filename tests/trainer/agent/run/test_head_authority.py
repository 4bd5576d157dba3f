"""HEAD for a script without our engine, when the store responds late or never."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from providers.stores.base import StoreUnavailableError
from providers.stores.local import LocalStore
from spotd.wire import AgentConfig, CheckpointStorage, Head, Manifest
from tests.fixtures.late import LateStore
from tests.fixtures.waiting import LIMIT_S
from trainer.agent.run import head_authority
from trainer.agent.run.head_authority import Authority
from trainer.fence import Fence


class Listener:
    def __init__(self) -> None:
        self.settled: list[Head | None] = []
        self.failed: list[str] = []
        self.done = threading.Event()

    def on_settled(self, head: Head | None, *, final: bool, size: int = 0) -> None:
        assert final
        self.settled.append(head)
        self.done.set()

    def on_store_failed(self, text: str) -> None:
        self.failed.append(text)
        self.done.set()


def test_success_is_committed_behind_a_save_that_landed_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_authority, "RETRY_S", 0.0)
    store, listener = LateStore(LocalStore(tmp_path)), Listener()
    fence = Fence(store, "job", 1, "token", sleep=lambda _: None)
    fence.claim()
    with store.losing(), pytest.raises(StoreUnavailableError):
        fence.commit(Manifest("job", 1, 3, created_at_us=0, world_size=1))
    storage, gang = CheckpointStorage(store.url, {}), SimpleNamespace(num_nodes=1)
    start: Any = SimpleNamespace(storage=storage, gang=gang)
    config = AgentConfig("deployment", "job", 1, 0, "token", "local")
    said: Any = listener
    ours = Authority(config, start, said, lambda call: call(), threading.Event(), lambda: 0)
    ours._opened = fence
    ours.start_final()
    assert listener.done.wait(LIMIT_S)
    assert listener.failed == []
    (head,) = listener.settled
    assert head is not None
    assert head.current is not None
    assert (head.final, head.current.step, head.previous[0].step) == (True, 3, 3)
