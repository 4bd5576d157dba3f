"""The last seconds of a training process: what is in HEAD is true, whatever dies or hangs then."""

from __future__ import annotations

import fcntl
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from providers.stores import open_store
from spotd.wire import EXIT_FINISHED, EXIT_RELEASED, PLAN, RELEASED
from tests.fixtures.waiting import LIMIT_S, until
from tests.trainer.rig import AgentEnd, Trainer
from tests.trainer.saver.rig import CONFIG, Gate, Rig, fill
from trainer.fence import read_head
from trainer.hook.spotd_hook.head_ownership import HeadOwnership
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.save_planner import SavePlanner
from trainer.reference.world import World


def test_a_rank_that_dies_after_the_last_step_spoils_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    folder = tmp_path / "store" / ".store"
    folder.mkdir(parents=True)
    ranks = [
        Trainer(tmp_path, every_steps=0, env={**world, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    try:
        with AgentEnd() as agent, (folder / "lock").open("wb") as lock:
            first, second = (rank.start(1, agent) for rank in ranks)
            agent.wait("progress")
            fcntl.flock(lock, fcntl.LOCK_EX)  # the final manifest takes its time
            agent.wait("progress", lambda data: data["to_step"] == ranks[0].steps)
            second.send_signal(signal.SIGKILL)
            second.wait(LIMIT_S)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert first.wait(LIMIT_S) == EXIT_FINISHED, ranks[0].output()
            assert agent.wait("checkpoint").data["final"] is True
    finally:
        for rank in ranks:
            rank.end()


def test_only_rank_0_knows_the_end_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(torch.distributed, "broadcast", broken)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", broken)
    first, second = (World(rank, rank, 2, torch.device("cpu")) for rank in (0, 1))
    assert first.broadcast_exit_code(EXIT_FINISHED) == EXIT_FINISHED
    with pytest.raises(RuntimeError, match="closed by peer"):
        second.broadcast_exit_code(EXIT_FINISHED)
    with pytest.raises(RuntimeError, match="closed by peer"):
        first.broadcast(5)
    second.close()


@pytest.mark.parametrize(("remaining_s", "waited_s"), [(4.0, 3.0), (1.0, 0.5), (-1.0, 0.0)])
def test_a_last_save_that_overruns_leaves_time_to_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remaining_s: float, waited_s: float
) -> None:
    store = Gate(open_store(tmp_path.as_uri()))
    rig = Rig(tmp_path / "s", store, 1, claim=False)
    checkpointer = rig.checkpointer()

    def save(step: int, _: str = "", *, released: bool = False) -> bool:
        state = {"config": CONFIG}
        checkpointer.save(
            step, lambda memory, _: fill(memory, step), state, trigger="t", released=released
        )
        return True

    save(5)
    assert checkpointer.drain(LIMIT_S)
    store.entered.clear()
    store.open.clear()
    waited: list[float] = []
    said: list[str] = []

    def overrun(timeout_s: float, save_again: object, *, drop_waiting: bool) -> bool:
        assert not drop_waiting
        waited.append(timeout_s)
        return False

    monkeypatch.setattr(checkpointer, "drain", overrun)
    stop: Any = SimpleNamespace(remaining_s=remaining_s, notice_remaining_s=None, reason="a notice")
    quick: Any = SimpleNamespace(
        save_s=lambda: 0.1, in_flight_s=lambda: 0.1, rates=SimpleNamespace(measured=True)
    )
    planning = SavePlanner(Job.from_env({}), quick, stop, lambda kind, _: said.append(kind))
    save(9, released=True)  # under way
    assert store.entered.wait(LIMIT_S)
    link: Any = SimpleNamespace(send=lambda kind, _: said.append(kind))
    try:
        assert (
            HeadOwnership(link, stop, checkpointer, planning, save).save_and_release(9)
            == EXIT_RELEASED
        )
        assert waited == [waited_s]
        assert said == [PLAN, PLAN, RELEASED]
        entry = read_head(open_store(tmp_path.as_uri()), "job")
        assert entry is not None
        assert entry[0].released
        assert entry[0].current is not None
        assert entry[0].current.step == 5
    finally:
        store.open.set()
        checkpointer.close()
    until(rig.service.worker.nothing_pending)
    rig.close()
    assert rig.steps("checkpoint_failed") == []


def test_with_time_for_the_save_under_way_alone_head_is_given_away_when_it_is_through(
    tmp_path: Path,
) -> None:
    """A newer snapshot waits behind it, which the time that is left is too short for: the machine
    is not kept until its end, and with it the next one, which waits for HEAD."""
    store, told = Gate(open_store(tmp_path.as_uri())), []
    rig = Rig(tmp_path / "s", store, 1, claim=False)
    checkpointer = rig.checkpointer()

    def save(step: int, *_: object, **__: object) -> bool:
        checkpointer.save(
            step, lambda memory, _: fill(memory, step), {"config": CONFIG}, trigger="t"
        )
        return True

    store.open.clear()
    save(6)
    assert store.entered.wait(LIMIT_S)
    save(7)
    left_s = 2 * LIMIT_S
    stop: Any = SimpleNamespace(remaining_s=left_s, notice_remaining_s=None, reason="a notice")
    slow: Any = SimpleNamespace(
        save_s=lambda: 2 * left_s, in_flight_s=lambda: 1.0, rates=SimpleNamespace(measured=True)
    )
    planning = SavePlanner(Job.from_env({}), slow, stop, lambda _, data: told.append(data))
    link: Any = SimpleNamespace(send=lambda _kind, _data: None)
    threading.Timer(0.2, store.open.set).start()
    began = time.monotonic()
    try:
        assert (
            HeadOwnership(link, stop, checkpointer, planning, save).save_and_release(8)
            == EXIT_RELEASED
        )
        assert time.monotonic() - began < LIMIT_S
        planned, ended = told
        assert (planned["action"], ended["action"]) == ("finish", "finish")
        assert (ended["step"], ended["kept"]) == (6, True)
        entry = read_head(store, "job")
        assert entry is not None
        assert entry[0].released
        assert entry[0].current is not None
        assert entry[0].current.step == 6
    finally:
        checkpointer.close()
    until(rig.service.worker.nothing_pending)
    rig.close()
