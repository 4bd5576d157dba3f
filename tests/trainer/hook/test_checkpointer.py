"""The layout of a state may change between saves, as an optimizer's does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store
from tests.fixtures.waiting import LIMIT_S
from tests.trainer.saver.rig import Gate, Rig
from trainer.hook.spotd_hook.checkpointer import Checkpointer, RankGroup
from trainer.hook.spotd_hook.saver_client import SaverClient, SaverError


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    checkpointer = Rig(tmp_path / "s", Gate(open_store(tmp_path.as_uri())), 1, claim=False)
    yield checkpointer
    checkpointer.close()


def checkpointer_of(rig: Rig, **layout: Any) -> Checkpointer:
    checkpointer = Checkpointer(
        lambda: SaverClient(str(rig.path)), job_id="job", generation=1, report=rig.note, **layout
    )
    assert checkpointer.claim("now", 0.0) is not None
    return checkpointer


def layout_of(size: int) -> tuple[list[dict[str, Any]], int]:
    piece = {"name": "w", "dtype": "int8", "shape": [size], "at": [0], "block": [size], "offset": 0}
    return [piece], size


def save(checkpointer: Checkpointer, step: int, size: int) -> None:
    def fill(memory: memoryview, _: object) -> None:
        memory[:] = bytes([step]) * size

    checkpointer.lay_out(*layout_of(size))
    checkpointer.save(step, fill, {"config": {}}, trigger="test")
    assert checkpointer.drain(LIMIT_S)
    assert checkpointer.committed == step


@pytest.mark.behaviour("a state whose layout changes from save to save", way="the saver")
def test_a_layout_that_changes_is_saved_and_restored_as_it_was(rig: Rig) -> None:
    first = checkpointer_of(rig)
    assert first.restore({}, lambda _: None) is None
    save(first, 1, 5000)
    save(first, 2, 5000)
    save(first, 3, 90_000)
    assert rig.steps("checkpoint_failed") == []
    first.close()
    second, loaded = checkpointer_of(rig), list[bytes]()
    found = second.restore({}, lambda memory: loaded.append(bytes(memory)))
    assert found is not None
    assert (found.step, second.size) == (3, 90_000)
    assert loaded == [bytes([3]) * 90_000]
    assert list(second.pieces) == layout_of(90_000)[0]
    save(second, 4, 90_000)
    second.close()


def test_one_that_is_fixed_takes_no_other(rig: Rig) -> None:
    first = checkpointer_of(rig)
    save(first, 1, 5000)
    first.close()
    pieces, size = layout_of(6000)
    second = checkpointer_of(rig, pieces=pieces, size=size)
    with pytest.raises(SaverError, match=r"than this model has \(different: w is int8 \[5000\]\)"):
        second.restore({}, lambda _: None)
    second.close()


@pytest.mark.parametrize("background", [False, True])
def test_a_copy_that_fails_ends_no_training(rig: Rig, background: bool) -> None:
    def fail(_: memoryview, filled: Callable[[int], None]) -> None:
        filled(17)
        raise MemoryError("no room to flatten it")

    checkpointer = checkpointer_of(rig)
    save(checkpointer, 1, 5000)
    checkpointer.save(2, fail, {"config": {}}, trigger="test", background=background)
    checkpointer.wait_for_copy()
    [failure] = [data for kind, data in rig.reports if kind == "checkpoint_failed"]
    assert failure["step"] == 2
    assert "MemoryError: no room" in failure["error"]
    save(checkpointer, 3, 5000)
    assert rig.steps("checkpoint") == [1, 3]
    checkpointer.close()


def test_memory_is_pinned_before_the_first_copy_and_let_go_with_the_line(rig: Rig) -> None:
    pinned = list[int]()

    def pin(memory: memoryview) -> Callable[[], None]:
        pinned.append(size := len(memory))
        return lambda: pinned.remove(size)

    checkpointer = checkpointer_of(rig, group=RankGroup(pin=pin))
    assert pinned == []
    save(checkpointer, 1, 5000)
    assert pinned == [4 * 4096], "two slots of two pages"
    save(checkpointer, 2, 90_000)
    assert pinned == [2 * 22 * 4096], "another layout's, and that alone"
    checkpointer.close()
    assert pinned == []
