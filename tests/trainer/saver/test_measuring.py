"""The saver's measurements of saves, and the checkpointer's use of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.fixtures.waiting import LIMIT_S, until
from tests.trainer.saver.rig import CONFIG, SIZE, Gate, Rig, fill
from trainer.hook.spotd_hook.checkpointer import Checkpointer
from trainer.hook.spotd_hook.rates import DEFAULT_UPLOAD_S

Start = Callable[..., Rig]


@pytest.fixture
def rig(start: Start) -> Rig:
    return start(1, claim=False)


@pytest.fixture
def checkpointer(rig: Rig) -> Iterator[Checkpointer]:
    checkpointer = rig.checkpointer()
    yield checkpointer
    checkpointer.close()


def save(checkpointer: Checkpointer, step: int, *, copy_s: float = 0.0) -> None:
    def stage(memory: memoryview, _: object) -> None:
        time.sleep(copy_s)
        fill(memory, step)

    checkpointer.save(step, stage, {"config": CONFIG}, trigger="t")


def test_the_trainer_has_what_the_saver_measured(rig: Rig, checkpointer: Checkpointer) -> None:
    assert (checkpointer.size, checkpointer.puts, checkpointer.committed) == (SIZE, 0, -1)
    assert not checkpointer.rates.measured
    assert (checkpointer.save_s(), checkpointer.in_flight_s()) == (DEFAULT_UPLOAD_S, None)
    save(checkpointer, 3, copy_s=0.2)
    assert checkpointer.drain(LIMIT_S)
    [entry] = [data for kind, data in rig.reports if kind == "checkpoint"]
    assert (checkpointer.puts, checkpointer.committed) == (8, 3), "six shards, manifest, HEAD"
    assert entry["stage_s"] >= 0.2
    assert checkpointer.rates.stall_s(SIZE) == pytest.approx(entry["stage_s"])
    assert checkpointer.rates.upload_s(SIZE) == pytest.approx(entry["write_s"], abs=2e-6)
    assert checkpointer.save_s() == pytest.approx(entry["stage_s"] + entry["write_s"], abs=2e-6)
    assert checkpointer.in_flight_s() is None


def test_a_save_that_met_trouble_measures_nothing(
    rig: Rig, store: Gate, checkpointer: Checkpointer
) -> None:
    store.refusing = 1
    save(checkpointer, 1)
    assert checkpointer.drain(LIMIT_S)
    assert rig.steps("checkpoint") == rig.steps("checkpoint_failed") == [1]
    assert checkpointer.committed == 1
    assert not checkpointer.rates.measured


def test_what_is_left_of_a_flight_is_told_while_it_lasts(
    store: Gate, checkpointer: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer.rates.add(SIZE, 0.0, 1000.0)
    put_rest, put, entered = threading.Event(), store.put, threading.Event()

    def first_alone(key: str, data: bytes | memoryview) -> None:
        if not key.endswith("-00000"):
            entered.set()
            assert put_rest.wait(LIMIT_S)
        put(key, data)

    monkeypatch.setattr(store, "put", first_alone)
    try:
        save(checkpointer, 2)
        assert entered.wait(LIMIT_S)
        gone = 4096 / SIZE
        until(lambda: checkpointer.in_flight_s() == pytest.approx(1000 * (1 - gone), rel=1e-3))
    finally:
        put_rest.set()
    assert checkpointer.drain(LIMIT_S)
    assert checkpointer.in_flight_s() is None


def test_a_flight_is_timed_from_the_end_of_the_copy(
    store: Gate, checkpointer: Checkpointer
) -> None:
    """An upload that overlaps the copy has to wait for it, so the time starts at its end."""
    checkpointer.rates.add(SIZE, 0.3, 10.0)
    store.open.clear()
    copied_at: list[float] = []

    def stage(memory: memoryview, _: object) -> None:
        time.sleep(0.3)
        copied_at.append(time.monotonic())

    checkpointer.save(1, stage, {"config": CONFIG}, trigger="t")
    assert store.entered.wait(LIMIT_S)
    remaining_s = checkpointer.in_flight_s()
    assert remaining_s is not None
    assert 10.0 >= remaining_s >= 10.0 - (time.monotonic() - copied_at[0])
    store.open.set()
    assert checkpointer.drain(LIMIT_S)


def test_a_copy_beside_training_costs_it_what_the_fence_waits(
    rig: Rig, checkpointer: Checkpointer
) -> None:
    may_continue, copied = threading.Event(), threading.Event()

    def stage(memory: memoryview, filled: Callable[[int], None]) -> None:
        fill(memory, 5)
        filled(SIZE - 1)
        time.sleep(0.2)
        assert may_continue.wait(LIMIT_S)
        copied.set()

    checkpointer.save(5, stage, {"config": CONFIG}, trigger="t", background=True)
    assert not copied.is_set()
    assert checkpointer.in_flight_s() == DEFAULT_UPLOAD_S, "all of the upload is still to come"
    threading.Timer(0.01, may_continue.set).start()
    assert checkpointer.wait_for_copy() > 0.0
    assert copied.is_set()
    assert checkpointer.drain(LIMIT_S)
    [entry] = [data for kind, data in rig.reports if kind == "checkpoint"]
    assert checkpointer.committed == 5
    assert entry["stage_s"] >= 0.2
    assert 0 < checkpointer.rates.stall_s(SIZE) <= entry["stage_s"] <= checkpointer.save_s()
    checkpointer.save(6, lambda *_: None, {"config": CONFIG}, trigger="t", background=True)
    time.sleep(0.05)
    checkpointer.wait_for_copy()
    assert checkpointer.drain(LIMIT_S)
    last = [data for kind, data in rig.reports if kind == "checkpoint"][-1]
    assert checkpointer.rates.stall_s(SIZE) <= last["stage_s"], "and not until somebody asked"


@pytest.mark.parametrize("next_call", ["save", "drain", "release", "restore", "close"])
def test_whatever_comes_next_waits_for_the_copy(checkpointer: Checkpointer, next_call: str) -> None:
    copied: list[int] = []

    def stage(memory: memoryview, _: object) -> None:
        time.sleep(0.05)
        fill(memory, 1)
        copied.append(1)

    checkpointer.save(1, stage, {"config": CONFIG}, trigger="t", background=True)
    assert not copied
    {
        "save": lambda: save(checkpointer, 2),
        "drain": lambda: checkpointer.drain(0.0),
        "release": checkpointer.release,
        "restore": lambda: checkpointer.restore(CONFIG, lambda _: None),
        "close": checkpointer.close,
    }[next_call]()
    assert copied


def test_what_is_given_up_is_under_way_no_more(rig: Rig) -> None:
    assert rig.engine.claim() is not None
    rig.save_and_wait(1)
    progress = rig.engine.progress
    assert rig.engine.begin(2, {}) is not None
    assert rig.engine.progress.pending
    rig.connect().close()  # another program: what the one before had not wholly staged is given up
    until(lambda: not rig.engine.progress.pending)
    assert rig.engine.progress == replace(progress, pending=False)
