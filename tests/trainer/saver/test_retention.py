"""Old checkpoints are deleted, but never the last good one."""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from providers.stores.base import NotFoundError, StoreUnavailableError
from spotd.wire import pin_folder, pin_key
from tests.fixtures.waiting import until
from tests.trainer.saver.rig import SIZE, Gate, Rig, head_of, stored_steps
from trainer.fence import FencedError
from trainer.saver.reader import CorruptError
from trainer.saver.retention import PinRefusedError, ReadBack, remove_old

Start = Callable[..., Rig]
CHUNKS = -(-SIZE // 4096)


@pytest.mark.req("CKP-04")
def test_only_the_newest_are_kept(start: Start, store: Gate) -> None:
    rig = start(1, keep=2)
    for step in range(1, 6):
        rig.save_and_wait(step)
    until(lambda: stored_steps(store) == [4, 5])
    assert start(2, keep=2).restore() == 5


def test_many_are_kept_when_many_are_asked_for(start: Start, store: Gate) -> None:
    rig = start(1, keep=12)
    for step in range(1, 15):
        rig.save_and_wait(step)
    until(lambda: len(stored_steps(store)) <= 12)
    assert stored_steps(store) == list(range(3, 15))


def test_of_so_many_steps_one_stays_beside_the_newest(start: Start, store: Gate) -> None:
    rig = start(1, keep=1, keep_every_steps=10)
    for step in (4, 9, 12, 15, 27, 28, 30, 41):
        rig.save_and_wait(step)
        remove_old(rig.service.fence, 1, lambda: True, 10)
    assert stored_steps(store) == [12, 27, 30, 41]
    pins = [info.key.rpartition("/")[2] for info in store.list(pin_folder("job"))]
    assert pins == ["step-12", "step-27", "step-30", "step-41"]
    heir = start(2, keep=1, keep_every_steps=10)
    assert heir.restore() == 41
    store.delete(pin_key("job", "step-12"))  # as `spotctl ckpt unpin` does
    heir.save_and_wait(45)
    remove_old(heir.service.fence, 1, lambda: True, 10)
    assert stored_steps(store) == [27, 30, 41, 45]


def test_nothing_is_pinned_beside_a_newest_that_is_damaged(
    start: Start, store: Gate, tmp_path: Path
) -> None:
    rig = start(1)  # the saver itself pins nothing: it may do so at any moment
    rig.save_and_wait(12)
    [shard] = (tmp_path / "store").rglob("s000000000012-*/r00000-00000")
    shard.write_bytes(b"!" * shard.stat().st_size)
    with pytest.raises(CorruptError):
        remove_old(rig.service.fence, 1, lambda: True, 10)
    assert list(store.list(pin_folder("job"))) == []


@pytest.mark.req("CKP-23")
def test_nothing_is_removed_before_the_newest_is_verified(
    start: Start, store: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a store that confirms writes it did not make."""
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
    until(lambda: bool(store.deleted))
    # The deletion that was running is over.
    assert remove_old(rig.service.fence, 3, may_continue=lambda: True) == 0
    assert store.deleted == ["jobs/job/g00000001/s000000000003-dead/r00000-00000"]
    store.get("jobs/job/g00000009/s000000000003-new/r00000-00000")
    store.get("jobs/job/g-notes")


def test_what_another_machine_of_ours_may_be_writing_stays(start: Start, store: Gate) -> None:
    """That machine is ahead of HEAD, or saves the same step again to release it."""
    rig = start(1)
    rig.save_and_wait(5)
    folders = [f"jobs/job/g00000001/s{step:012d}-theirs" for step in (4, 5, 6)]
    for folder in folders:
        store.put(f"{folder}/r00001-00000", b"of another rank")
    assert remove_old(rig.service.fence, 1, may_continue=lambda: True) == 1
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
        remove_old(rig.service.fence, 1, may_continue=lambda: True)
    assert store.deleted == []


def test_a_save_interrupts_the_housekeeping(start: Start, store: Gate) -> None:
    rig = start(1)
    rig.save_and_wait(1)
    rig.save_and_wait(2)
    assert remove_old(rig.service.fence, 1, may_continue=lambda: False) == 0
    assert remove_old(rig.service.fence, 1, may_continue=lambda: True) == 7
    assert stored_steps(store) == [2]


class Pauses:
    """A saver that deletes nothing by itself, with pauses of a given length between its saves.

    `read` lists the steps and chunks that were read back.
    """

    def __init__(self, rig: Rig, store: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store, "get_range", self._get_range, raising=False)
        self.rig, self.store, self.fence = rig, store, rig.service.fence
        self.read_back = ReadBack()
        self.read: list[tuple[int, str, int]] = []

    def _get_range(self, key: str, start: int, length: int) -> bytes:
        self.read.append((int(key.split("/")[3][1:13]), key.rpartition("/")[2], start))
        return self.store._store.get_range(key, start, length)

    def save(self, *steps: int) -> None:
        for step in steps:
            self.rig.save_and_wait(step)

    def clean(self, max_actions: int = 10**6, keep: int = 1, every: int = 0) -> int:
        """Run housekeeping for `max_actions` chunks and deletes; return the objects deleted."""
        actions = iter(range(max_actions))
        may_continue = lambda: next(actions, None) is not None  # noqa: E731
        return remove_old(self.fence, keep, may_continue, every, self.read_back)

    def file(self, step: int, name: str) -> Path:
        [path] = Path(self.store.url.removeprefix("file://")).rglob(f"s{step:012d}-*/{name}")
        return path

    def tear(self, step: int, chunk: int) -> None:
        shard = self.file(step, f"r00000-{chunk:05d}")
        shard.write_bytes(b"!" * shard.stat().st_size)


@pytest.fixture
def pauses(start: Start, store: Gate, monkeypatch: pytest.MonkeyPatch) -> Pauses:
    return Pauses(start(1, keep=1000), store, monkeypatch)


def test_a_read_back_goes_on_in_the_next_pause_and_reads_each_chunk_once(
    pauses: Pauses, store: Gate
) -> None:
    pauses.save(1, 2)
    for step in (3, 4, 5):
        pauses.clean(2)
        pauses.save(step)
    assert [step for step, _, _ in pauses.read] == [2] * CHUNKS
    assert len(set(pauses.read)) == CHUNKS
    assert store.deleted == []
    assert pauses.clean() == CHUNKS + 1
    assert stored_steps(store) == [2, 3, 4, 5], "it stays with all that came since, beyond `keep`"
    assert pauses.clean() == 3 * (CHUNKS + 1)
    assert stored_steps(store) == [5]
    assert len(set(pauses.read)) == len(pauses.read) == 2 * CHUNKS


@pytest.mark.req("CKP-04")
@pytest.mark.parametrize("keep", [1, 3])
def test_what_is_stored_has_a_bound_though_no_pause_is_long_enough(
    pauses: Pauses, store: Gate, keep: int
) -> None:
    """A checkpoint takes six chunks and seven deletes."""
    max_actions = 0
    for step in range(1, 60):
        pauses.save(step)
        max_actions = max(max_actions, len(stored_steps(store)))
        pauses.clean(10, keep=keep)
        assert stored_steps(store)[-keep:] == list(range(max(1, step - keep + 1), step + 1))
    assert max_actions <= keep + 2 * 2, "those that come during two read-backs"


@pytest.mark.req("CKP-23")
def test_damage_in_what_is_read_later_keeps_everything(pauses: Pauses, store: Gate) -> None:
    pauses.save(1, 2)
    pauses.clean(3)
    pauses.tear(2, 4)
    pauses.save(3)
    with pytest.raises(CorruptError, match="r00000-00004"):
        pauses.clean()
    assert store.deleted == []
    pauses.clean()
    assert stored_steps(store) == [3], "the newest is next, and is whole"


def test_what_came_after_the_verified_one_is_no_reason_to_delete(
    pauses: Pauses, store: Gate
) -> None:
    """The newer ones are damaged: the verified checkpoint is the only good one."""
    pauses.save(1, 2)
    pauses.clean(3)
    pauses.save(3, 4)
    for step in (3, 4):
        pauses.tear(step, 0)
    pauses.clean()
    assert stored_steps(store) == [2, 3, 4]
    with pytest.raises(CorruptError):
        pauses.clean()
    assert stored_steps(store) == [2, 3, 4]


def test_a_pin_is_made_of_nothing_newer_than_the_verified_one(pauses: Pauses, store: Gate) -> None:
    pauses.save(4, 12)
    pauses.clean(3, every=10)
    pauses.save(21)
    pauses.clean(every=10)
    pins = [info.key.rpartition("/")[2] for info in store.list(pin_folder("job"))]
    assert pins == ["step-12"]


def test_a_store_that_takes_no_pin_is_relieved_of_what_a_newer_checkpoint_makes_old(
    pauses: Pauses, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a full store stays full: each save fails, and each housekeeping fails at the pin."""
    put = store.put

    def refuse_pins(key: str, data: Any) -> None:
        if key.startswith(pin_folder("job")):
            raise OSError(ENOSPC, "no space left on device")
        put(key, data)

    pauses.save(1, 2, 3)
    monkeypatch.setattr(store, "put", refuse_pins)
    pauses.clean(3, every=2)
    pauses.save(4)
    for left in ([2, 3, 4], [2, 4]):
        with pytest.raises(PinRefusedError, match="no space left"):
            pauses.clean(every=2)
        assert stored_steps(store) == left
        assert pauses.read_back.has_more == (3 in left)
    monkeypatch.setattr(store, "put", put)
    pauses.clean(every=2)
    pins = [info.key.rpartition("/")[2] for info in store.list(pin_folder("job"))]
    assert pins == ["step-2", "step-4"]
    assert stored_steps(store) == [2, 4]


def test_what_is_to_be_removed_is_known_over_the_pauses(pauses: Pauses, store: Gate) -> None:
    """One verification is enough, and what is pinned meanwhile stays."""
    pauses.save(1, 2, 3)
    assert pauses.clean(CHUNKS + 3) == 3
    deleted_names = [key.rpartition("/")[2] for key in store.deleted]
    assert deleted_names == ["MANIFEST.json", "MANIFEST.json", "r00000-00000"], (
        "half a checkpoint is none"
    )
    pauses.save(4)
    pauses.clean()
    assert stored_steps(store) == [3, 4]
    assert [step for step, _, _ in pauses.read] == [3] * CHUNKS


def test_an_error_of_the_store_costs_no_chunk_that_was_read(
    pauses: Pauses, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses.save(1, 2)
    pauses.clean(3)
    real = pauses._get_range

    def away(key: str, start: int, length: int) -> bytes:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(store, "get_range", away)
    with pytest.raises(StoreUnavailableError):
        pauses.clean()
    assert store.deleted == []
    monkeypatch.setattr(store, "get_range", real)
    pauses.clean()
    assert stored_steps(store) == [2]
    assert len(set(pauses.read)) == len(pauses.read) == CHUNKS


def test_of_one_that_a_person_removed_meanwhile_nothing_is_said(
    pauses: Pauses, store: Gate
) -> None:
    pauses.save(1, 2)
    pauses.clean(CHUNKS)
    pauses.save(3)
    pauses.file(2, "MANIFEST.json").unlink()  # as `spotctl ckpt rm` begins
    assert pauses.clean() == 0
    assert pauses.read_back.has_more, "there is a newer one to begin with"
    pauses.clean()
    assert stored_steps(store) == [3]


def test_of_one_whose_shard_is_lost_it_is_said(pauses: Pauses, store: Gate) -> None:
    pauses.save(1, 2)
    pauses.clean(3)
    pauses.save(3)
    pauses.file(2, "r00000-00004").unlink()
    with pytest.raises(NotFoundError):
        pauses.clean()
    assert store.deleted == []


def test_with_a_claim_it_is_over_until_the_next_commit(pauses: Pauses, store: Gate) -> None:
    """The program restarts, and may resume from an older checkpoint."""
    pauses.save(1, 2, 3)
    deletes = iter(range(CHUNKS + 2))

    def claims() -> bool:
        if next(deletes, None) is None:
            pauses.fence.claim()
        return True

    assert remove_old(pauses.fence, 1, claims, 0, pauses.read_back) == 2
    assert pauses.clean() == 0
    pauses.save(4)
    pauses.clean()
    assert stored_steps(store) == [3, 4]


def test_what_is_no_more_in_the_chain_is_not_what_all_else_depends_on(
    pauses: Pauses, store: Gate
) -> None:
    """The program goes back to 1 while 3 is being read back, and saves 2 again.

    An intact 3 must be no reason to delete the new 2.
    """
    pauses.save(1, 2, 3)
    pauses.clean(3)
    head = pauses.fence.claim()
    pauses.fence.resume_from(head.previous[-1])
    pauses.save(2)
    pauses.tear(3, 5)
    pauses.read.clear()
    pauses.clean()
    newest = head_of(store).current
    assert newest is not None
    assert {step for step, _, _ in pauses.read} == {2}
    assert len(list(store.list(newest.manifest.rpartition("/")[0]))) == CHUNKS + 1


def test_one_that_was_read_in_part_is_no_reason_to_delete_though_there_is_time_again(
    pauses: Pauses, store: Gate
) -> None:
    pauses.save(1, 2)
    answers = iter([True, False])
    assert remove_old(pauses.fence, 1, lambda: next(answers, True), 0, pauses.read_back) == 0
    assert (len(pauses.read), store.deleted) == (1, [])


def test_who_claims_among_the_deletes_finds_the_shards(
    start: Start, pauses: Pauses, store: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests are deleted first, and HEAD is checked again before the shards."""
    pauses.save(1, 2)
    delete = store.delete

    def claimed(key: str) -> None:
        delete(key)
        monkeypatch.setattr(store, "delete", delete)
        start(2, keep=1000)

    monkeypatch.setattr(store, "delete", claimed)
    with pytest.raises(FencedError):
        pauses.clean()
    assert [key.rpartition("/")[2] for key in store.deleted] == ["MANIFEST.json"]
