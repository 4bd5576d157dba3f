"""The flag for the program, and how the program's plan affects the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.base import Notice, NoticeKind
from spotd import wire
from trainer.agent.base.active_notices import ActiveNotices
from trainer.agent.base.desired_state import DesiredState
from trainer.agent.base.stop_timing import StopTiming
from trainer.agent.main.worker_flag import WorkerFlag

NOW = 1000.0
PLANNED = {"status": "planned", "action": "train"}


@pytest.fixture
def dangers() -> ActiveNotices:
    return ActiveNotices(lambda: NOW, lambda: 0)


@pytest.fixture
def worker_flag(dangers: ActiveNotices, tmp_path: Path) -> WorkerFlag:
    dangers.add(Notice("n", NoticeKind.PREEMPT, deadline_us=120_000_000, source="test"))
    return WorkerFlag(dangers, DesiredState(tmp_path / "demands"))


def test_the_program_is_shown_how_long_it_may_train_on(worker_flag: WorkerFlag) -> None:
    worker_flag.mtbf_s = 7200.0
    flag = worker_flag.flag(NOW + 20)
    assert (flag["notice_s"], flag["mtbf_s"], flag["stop"]) == (99.0, 7200.0, False)
    assert worker_flag.flag(NOW + 500)["notice_s"] == 0.0
    worker_flag.withdraw("n")
    assert worker_flag.flag(NOW)["notice_s"] is None


def test_one_that_plans_its_last_save_is_stopped_only_where_it_does_not_keep_to_it(
    worker_flag: WorkerFlag,
) -> None:
    assert worker_flag.note(wire.PLAN, PLANNED) == ""
    assert worker_flag.planned
    ours, its = (
        StopTiming("spotd", 30.0, 20.0, 3.0),
        StopTiming("spotd", 30.0, 20.0, 3.0, planned=True),
    )
    assert ours.latest_stop(NOW, NOW + 120) == NOW + 69
    assert its.latest_stop(NOW, NOW + 120) == NOW + 98
    worker_flag.note(wire.CLAIMED, {"step": 3})
    assert not worker_flag.planned, "another program runs"


def test_one_that_says_that_it_plans_is_not_stopped_before_its_first_plan(
    worker_flag: WorkerFlag,
) -> None:
    for kind in (wire.READY, wire.CLAIMED):
        worker_flag.note(kind, {"plans": True} if kind == wire.READY else {"step": 3})
        assert worker_flag.planned
    worker_flag.withdraw("n")
    assert worker_flag.planned, "it will plan for the next one"
    worker_flag.note(wire.READY, {"prepared": "by an older hook"})
    assert not worker_flag.planned


@pytest.mark.parametrize("action", ["save", "finish", "release"])
def test_one_that_leaves_is_held_to_it(worker_flag: WorkerFlag, action: str) -> None:
    worker_flag.note(wire.PLAN, PLANNED)
    assert worker_flag.note(wire.PLAN, {"status": "planned", "action": action}) == action
    assert not worker_flag.planned
    assert worker_flag.note(wire.PLAN, {"status": "ended", "action": action}) == ""


def test_a_plan_for_no_notice_is_none(worker_flag: WorkerFlag) -> None:
    worker_flag.note(wire.PLAN, PLANNED)
    worker_flag.withdraw("n")
    assert not worker_flag.planned
    assert worker_flag.note(wire.PLAN, {"status": "planned", "action": "save"}) == ""
