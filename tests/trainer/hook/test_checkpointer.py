"""What is saved may look otherwise from one save to the next, as an optimizer's state does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store
from tests.trainer.saver.rig import Gate, Rig
from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.line import Line, SaverError


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "s", Gate(open_store(tmp_path.as_uri())), 1, claim=False)
    yield made
    made.close()


def checkpointer_of(rig: Rig, **layout: Any) -> Checkpointer:
    made = Checkpointer(
        lambda: Line(str(rig.path)), job_id="job", generation=1, report=rig.note, **layout
    )
    assert made.claim("now", 0.0) is not None
    return made


def layout_of(size: int) -> tuple[list[dict[str, Any]], int]:
    piece = {"name": "w", "dtype": "int8", "shape": [size], "at": [0], "block": [size], "offset": 0}
    return [piece], size


def save(checkpointer: Checkpointer, step: int, size: int) -> None:
    def fill(memory: memoryview, _: object) -> None:
        memory[:] = bytes([step]) * size

    checkpointer.lay_out(*layout_of(size))
    checkpointer.save(step, fill, {"config": {}}, trigger="test")
    assert checkpointer.drain(20)
    assert checkpointer.committed == step


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
    with pytest.raises(SaverError, match=r"than this model has \(otherwise: w is int8 \[5000\]\)"):
        second.restore({}, lambda _: None)
    second.close()
