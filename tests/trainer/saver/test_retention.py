"""Old checkpoints go, and never the last good one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotd.wire import pin_folder, pin_key
from tests.trainer.saver.rig import Gate, Rig, kept_steps, until
from trainer.fence import FencedError
from trainer.saver.reading import CorruptError
from trainer.saver.retention import remove_old

Start = Callable[..., Rig]


@pytest.mark.req("CKP-04")
def test_only_the_newest_are_kept(start: Start, store: Gate) -> None:
    rig = start(1, keep=2)
    for step in range(1, 6):
        rig.save_and_wait(step)
    until(lambda: kept_steps(store) == [4, 5])
    assert start(2, keep=2).restore() == 5


def test_many_are_kept_when_many_are_asked_for(start: Start, store: Gate) -> None:
    rig = start(1, keep=12)
    for step in range(1, 15):
        rig.save_and_wait(step)
    until(lambda: len(kept_steps(store)) <= 12)
    assert kept_steps(store) == list(range(3, 15))


def test_of_so_many_steps_one_stays_beside_the_newest(start: Start, store: Gate) -> None:
    rig = start(1, keep=1, keep_every_steps=10)
    for step in (4, 9, 12, 15, 27, 28, 30, 41):
        rig.save_and_wait(step)
        remove_old(rig.office.fence, 1, lambda: True, 10)
    assert kept_steps(store) == [12, 27, 30, 41]
    pins = [info.key.rpartition("/")[2] for info in store.list(pin_folder("job"))]
    assert pins == ["step-12", "step-27", "step-30", "step-41"]
    heir = start(2, keep=1, keep_every_steps=10)
    assert heir.restore() == 41
    store.delete(pin_key("job", "step-12"))  # as `spotctl ckpt unpin` does
    heir.save_and_wait(45)
    remove_old(heir.office.fence, 1, lambda: True, 10)
    assert kept_steps(store) == [27, 30, 41, 45]


def test_nothing_is_pinned_beside_a_newest_that_is_damaged(
    start: Start, store: Gate, tmp_path: Path
) -> None:
    rig = start(1, keep_every_steps=10)
    store.open.clear()  # the saver's own housekeeping is held up with the save
    assert rig.save(12)
    store.open.set()
    rig.wait(lambda: rig.office.saving.committed_step == 12 or rig.reports)
    until(lambda: bool(list(store.list(pin_folder("job")))))
    store.delete(pin_key("job", "step-12"))
    [shard] = (tmp_path / "store").rglob("s000000000012-*/r00000-00000")
    shard.write_bytes(b"!" * shard.stat().st_size)
    with pytest.raises(CorruptError):
        remove_old(rig.office.fence, 1, lambda: True, 10)
    assert list(store.list(pin_folder("job"))) == []


@pytest.mark.req("CKP-23")
def test_nothing_is_removed_before_the_newest_is_verified(
    start: Start, store: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a bucket that lies: it says that it has what it has not."""
    rig = start(1, keep=1)
    rig.save_and_wait(1)
    real_put = store.put

    def put_and_damage(key: str, data: Any) -> None:
        real_put(key, data)
        path = tmp_path / "store" / key
        path.write_bytes(path.read_bytes()[:-1] + b"!")

    monkeypatch.setattr(store, "put", put_and_damage)
    rig.save(2)
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    assert "read-back" in rig.reports[-1][1]["error"]
    assert store.deleted == []
    assert start(2).restore() == 1


def test_what_was_never_committed_goes_as_well(start: Start, store: Gate) -> None:
    store.put("jobs/job/g00000001/s000000000003-dead/r00000-00000", b"orphan of an old generation")
    store.put("jobs/job/g00000009/s000000000003-new/r00000-00000", b"of a generation after us")
    store.put("jobs/job/g-notes", b"somebody else's")
    rig = start(2)
    rig.save_and_wait(10)
    until(lambda: store.deleted)
    assert remove_old(rig.office.fence, 3, go_on=lambda: True) == 0  # the one under way is over
    assert store.deleted == ["jobs/job/g00000001/s000000000003-dead/r00000-00000"]
    store.get("jobs/job/g00000009/s000000000003-new/r00000-00000")
    store.get("jobs/job/g-notes")


def test_what_another_machine_of_ours_may_be_writing_stays(start: Start, store: Gate) -> None:
    """It is ahead of HEAD, or saves the same step once more to release it."""
    rig = start(1)
    rig.save_and_wait(5)
    folders = [f"jobs/job/g00000001/s{step:012d}-theirs" for step in (4, 5, 6)]
    for folder in folders:
        store.put(f"{folder}/r00001-00000", b"of another rank")
    assert remove_old(rig.office.fence, 1, go_on=lambda: True) == 1
    assert store.deleted == [f"{folders[0]}/r00001-00000"]
    rig.save_and_wait(7)
    until(lambda: len(store.deleted) > 1)
    until(lambda: {f"{folder}/r00001-00000" for folder in folders} <= set(store.deleted))


def test_a_fenced_writer_removes_nothing(start: Start, store: Gate) -> None:
    rig = start(1)
    rig.save_and_wait(1)
    rig.save_and_wait(2)
    store.deleted.clear()
    start(2)
    with pytest.raises(FencedError):
        remove_old(rig.office.fence, 1, go_on=lambda: True)
    assert store.deleted == []


def test_a_save_interrupts_the_housekeeping(start: Start, store: Gate) -> None:
    rig = start(1)
    rig.save_and_wait(1)
    rig.save_and_wait(2)
    assert remove_old(rig.office.fence, 1, go_on=lambda: False) == 0
    assert remove_old(rig.office.fence, 1, go_on=lambda: True) == 7
    assert kept_steps(store) == [2]
