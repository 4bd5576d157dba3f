"""Housekeeping on a store that is full or unreachable for a moment, and of unpinned milestones."""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC
from typing import Any

import pytest

from providers.stores.base import StoreUnavailableError
from spotd.wire import pin_folder
from tests.fixtures.waiting import until
from tests.trainer.saver.rig import CHUNKS, Gate, Reads, Rig, head_of, save, stored_steps

Start = Callable[..., Rig]
ROOM = 2 * (CHUNKS + 1)  # objects: two checkpoints, each of its chunks and a manifest


def pins(store: Gate) -> list[str]:
    return [info.key.rpartition("/")[2] for info in store.list(pin_folder("job"))]


def fill(
    store: Gate, monkeypatch: pytest.MonkeyPatch, room: int = ROOM, *, pins_too: bool = False
) -> None:
    """Let the store refuse writes beyond `room` objects; HEAD is overwritten in place."""
    put = store.put

    def refuse(key: str, data: Any) -> None:
        counts = "/s" in key or pins_too
        if counts and len(list(store.list("jobs/job/g"))) >= room:
            raise OSError(ENOSPC, "no space left on device")
        put(key, data)

    monkeypatch.setattr(store, "put", refuse)


def waiting_for_room(
    start: Start,
    store: Gate,
    reads: Reads,
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, Any],
    **options: Any,
) -> Rig:
    """Block the read-back of step 2, and let step 3 fail for lack of space."""
    rig = start(1, keep=1, **options)
    rig.save_and_wait(1)
    reads.open.clear()
    reads.count = 0
    rig.save_and_wait(2)
    until(lambda: reads.count == 1)
    fill(store, monkeypatch, pins_too="keep_every_steps" in options)
    assert rig.save(3, **flags)
    rig.wait(lambda: rig.steps("checkpoint_failed"))
    return rig


def unpinned(start: Start, reads: Reads, store: Gate) -> Rig:
    """Save 24 steps while step 6 is read back; one of each ten steps is due to be pinned."""
    rig = start(1, keep=1, keep_every_steps=10)
    save(rig, 4)
    save(rig, 5)
    until(lambda: stored_steps(store) == [5])
    reads.open.clear()
    reads.count = 0
    save(rig, 6)
    until(lambda: reads.count == 1)
    for step in range(7, 31):
        save(rig, step)
    return rig


@pytest.mark.req("CKP-04")
@pytest.mark.parametrize("flags", [{}, {"final": True}, {"trigger": "asked"}], ids=str)
def test_a_full_store_is_relieved_whatever_save_waits_for_room(
    start: Start, store: Gate, reads: Reads, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any]
) -> None:
    """Also for an urgent save: between two attempts it uploads nothing."""
    rig = waiting_for_room(start, store, reads, monkeypatch, flags)
    reads.open.set()
    rig.wait(lambda: 3 in rig.steps("checkpoint"))


def test_a_full_store_is_relieved_though_it_was_away_for_a_moment(
    start: Start, store: Gate, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No further commit requests another try."""
    rig = waiting_for_room(start, store, reads, monkeypatch, {})
    read = store.get_range

    def away(*_: Any) -> bytes:
        monkeypatch.setattr(store, "get_range", read)
        raise StoreUnavailableError("away once")

    monkeypatch.setattr(store, "get_range", away)
    reads.open.set()
    rig.wait(lambda: 3 in rig.steps("checkpoint"))


def test_a_full_store_that_takes_no_pin_is_relieved_of_the_rest(
    start: Start, store: Gate, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = waiting_for_room(start, store, reads, monkeypatch, {}, keep_every_steps=2)
    reads.open.set()
    rig.wait(lambda: 3 in rig.steps("checkpoint"))
    until(lambda: pins(store) == ["step-2"])


@pytest.mark.req("CKP-30")
def test_a_full_store_gives_no_milestone_away_that_it_takes_no_pin_for(
    start: Start, store: Gate, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 2 is not pinned yet, and not among the newest."""
    reads.open.clear()
    first = start(1, keep=1, keep_every_steps=2)
    save(first, 1)
    save(first, 2)
    assert first.service.worker is not None
    first.service.worker.close()
    heir = start(2, keep=1, keep_every_steps=2)
    reads.open.set()
    assert heir.restore() == 2
    reads.open.clear()
    save(heir, 3)
    fill(store, monkeypatch, ROOM + CHUNKS + 1, pins_too=True)
    assert heir.save(4)
    heir.wait(lambda: heir.steps("checkpoint_failed"))
    reads.open.set()
    heir.wait(lambda: 4 in heir.steps("checkpoint"))
    until(lambda: "step-2" in pins(store))
    assert 2 in stored_steps(store)


@pytest.mark.req("CKP-30")
def test_no_milestone_is_lost_over_an_error_before_it_is_pinned(
    start: Start, store: Gate, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits meanwhile would drop from HEAD what is older than the verified checkpoint."""
    rig = unpinned(start, reads, store)
    listed, failed = store.list, []

    def fail_once(prefix: str) -> Any:
        assert rig.service.worker is not None
        housekeeper = rig.service.worker._housekeeper
        verified = housekeeper._read_back.verified if housekeeper else None
        if verified and verified.step == 30 and not failed:
            failed.append(prefix)
            raise StoreUnavailableError("away")
        return listed(prefix)

    monkeypatch.setattr(store, "list", fail_once)
    reads.open.set()
    until(lambda: bool(failed))
    save(rig, 31)
    save(rig, 32)
    until(lambda: {"step-10", "step-20"} <= set(pins(store)))
    until(lambda: 7 not in stored_steps(store))
    assert {10, 20} <= set(stored_steps(store))


@pytest.mark.req("CKP-30")
def test_no_milestone_is_lost_to_the_next_saver(start: Start, store: Gate, reads: Reads) -> None:
    """It knows no pins, and so keeps all of HEAD's history until it has listed them."""
    rig = unpinned(start, reads, store)
    assert rig.service.worker is not None
    rig.service.worker.close()
    reads.open.set()
    assert len(head_of(store).previous) > 20
    heir = start(2, keep=1, keep_every_steps=10)
    assert heir.restore() == 30
    save(heir, 31)
    until(lambda: {"step-10", "step-20"} <= set(pins(store)))
    until(lambda: 7 not in stored_steps(store))
    until(lambda: stored_steps(store) == [10, 20, 30, 31])
    save(heir, 32)
    save(heir, 33)
    assert len(head_of(store).previous) < 10
