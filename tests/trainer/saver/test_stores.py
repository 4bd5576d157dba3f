"""Stores of each kind that another generation has taken, and a store that lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import Manifest
from tests.fixtures.waiting import LIMIT_S, until
from tests.providers.stores.conftest import KINDS, store_of
from tests.trainer.saver.rig import Gate, Rig, head_of
from trainer.fence import Fence, FencedError

Start = Callable[..., Rig]
ATTEMPTS = 20


@pytest.mark.parametrize("kind", ["file", *KINDS])
def test_of_a_zombie_no_commit_is_accepted(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """Neither what it had staged when it was overtaken, nor later attempts."""
    store = Gate(store_of(request, kind, tmp_path))
    zombie = Rig(tmp_path / "1.sock", store, 1)
    heir = Fence(store, "job", 2, "node2")
    try:
        zombie.save_and_wait(1)
        store.open.clear()
        assert zombie.save(2)
        assert store.entered.wait(LIMIT_S)
        head = heir.claim()
        store.open.set()
        until(lambda: zombie.service.worker.fenced is not None)
        for step in range(3, 3 + ATTEMPTS):
            with pytest.raises(FencedError):
                zombie.service.fence.commit(Manifest("job", 1, step, 0, world_size=1))
        assert head_of(store) == head
        assert zombie.steps("checkpoint") == [1]
    finally:
        store.open.set()
        zombie.close()


@pytest.mark.parametrize("lie", ["lost", "other", "short"])
def test_a_bucket_that_says_it_has_what_it_has_not_costs_one_checkpoint(
    start: Start, store: Gate, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    """Every third shard is confirmed but missing or different.

    That is detected before anything older is deleted, and reported; the job resumes from the
    checkpoint before.
    """
    rig, put = start(1, keep=1), store.put
    rig.save_and_wait(1)

    def lies(key: str, data: Any) -> None:
        if not key.endswith(("-00000", "-00003")):
            put(key, data)
        elif lie != "lost":
            put(key, bytes(len(data)) if lie == "other" else bytes(data)[:-1])

    monkeypatch.setattr(store, "put", lies)
    rig.save_and_wait(2)
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    assert rig.reports[-1][1]["error"].startswith("read-back: ")
    monkeypatch.setattr(store, "put", put)
    heir = start(2)
    assert heir.restore() == 1
    assert heir.steps("checkpoint_skipped") == [2]
