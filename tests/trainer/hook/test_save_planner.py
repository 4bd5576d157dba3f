"""One rank's part in the plans, and the reports about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from trainer.hook.spotd_hook.agent_client import Flag
from trainer.hook.spotd_hook.deadline import Action
from trainer.hook.spotd_hook.job import Job
from trainer.hook.spotd_hook.rates import Rates
from trainer.hook.spotd_hook.save_planner import SavePlanner
from trainer.hook.spotd_hook.stop import StopRequests

GB = 10**9


@dataclass
class Saves:
    """The part of a checkpointer that the planner uses."""

    rates: Rates = field(default_factory=Rates)
    size: int = GB
    puts: int = 3
    flight: float | None = None

    def save_s(self) -> float:
        return self.rates.save_s(self.size)

    def in_flight_s(self) -> float | None:
        return self.flight


class FakeLink:
    def __init__(self) -> None:
        self.flag = Flag()


class Lab:
    """One rank with its own clock."""

    def __init__(self, **env: str) -> None:
        self.now = 100.0
        self.reports: list[dict[str, Any]] = []
        self.saves, self.link = Saves(), FakeLink()
        self.saves.rates.add(GB, 1.0, 9.0)
        stop = StopRequests(monotonic=lambda: self.now)
        stop.listen(self.link)  # type: ignore[arg-type]
        self.planner = SavePlanner(
            Job.from_env(env),
            self.saves,  # type: ignore[arg-type]
            stop,
            lambda kind, data: self.reports.append({"kind": kind, **data}),
            monotonic=lambda: self.now,
            pause=self.pause,
        )

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def set_flag(self, remaining_s: float | None, **flag: Any) -> None:
        notice = None if remaining_s is None else self.now + remaining_s
        self.link.flag = Flag(notice_deadline=notice, **flag)

    def step(self, busy_s: float = 0.5) -> Action | None:
        self.now += busy_s
        values = self.planner.rank_values(0, 1, busy_s)
        plan = self.planner.plan_for([float(value) for value in values], 7)
        return plan.action if plan else None


def test_from_the_notice_to_the_last_save() -> None:
    lab = Lab()
    assert lab.step() is None
    lab.set_flag(30.0)
    actions = []
    while actions[-1:] != [Action.SAVE]:
        actions.append(lab.step())
        assert len(actions) < 60
    # 30 s - 2 s - 1.3 x 10 s are trained on, but for the step that would pass that.
    assert len(actions) == 29
    assert set(actions[:-1]) == {Action.TRAIN}
    first, last = lab.reports
    assert (first["action"], first["status"], first["left_s"]) == ("train", "planned", 29.5)
    assert first["start_in_s"] == pytest.approx(14.5, abs=0.01)
    assert (last["action"], last["save_s"], last["flight_s"]) == ("save", 10.001, None)
    assert last["margin_s"] == pytest.approx(5.5, abs=0.1)
    plan, began = lab.planner.plan_exit(25.0, 7), lab.now
    assert plan.action is Action.SAVE
    lab.now += 8.0
    lab.planner.report_outcome(plan, step=7, manifest="m", succeeded=True)
    ended = lab.reports[-1]
    assert (ended["status"], ended["step"], ended["kept"]) == ("ended", 7, True)
    assert ended["predicted_s"] == pytest.approx(10.0, abs=0.01)
    assert ended["took_s"] == pytest.approx(8.0, abs=0.1), "and none of it waiting for the agent"
    assert ended["margin_s"] == pytest.approx(7.5, abs=0.2)
    assert lab.now == began + 8.0
    lab.planner.wait_for_agent()
    assert lab.now == pytest.approx(began + 9.0, abs=0.1), "which then has a second to hear of it"


def test_a_notice_that_is_withdrawn_leaves_no_plan() -> None:
    lab = Lab(SPOTD_EVERY_STEPS="1")
    lab.set_flag(20.0)
    assert lab.step() is Action.TRAIN
    assert not lab.planner.is_due(5, 0.0), "the last save is too near for another"
    lab.set_flag(None)
    assert lab.step() is None
    assert lab.planner.is_due(5, 0.0)


def test_told_to_leave_before_that_it_does_what_fits() -> None:
    lab = Lab()
    lab.set_flag(60.0, stop=True)
    assert lab.step() is Action.TRAIN
    assert lab.planner.plan_exit(25.0, 7).action is Action.SAVE
    assert [report["action"] for report in lab.reports] == ["train", "save"]
    lab.saves.flight = 3.0
    lab.set_flag(9.0, stop=True)
    assert Lab().planner.plan_exit(25.0, 7).action is Action.SAVE, "25 s without a word"
    assert lab.planner.plan_exit(25.0, 7).action is Action.FINISH
    lab.saves.flight = None
    assert lab.planner.plan_exit(25.0, 7).action is Action.RELEASE


def test_a_stop_that_nobody_set_a_time_for_is_no_plan_to_tell() -> None:
    lab = Lab()
    plan = lab.planner.plan_exit(25.0, 7)
    lab.planner.report_outcome(plan, step=7, manifest="m", succeeded=True)
    assert lab.reports == []


def test_the_pause_between_saves_follows_what_is_measured_and_what_the_box_says() -> None:
    lab = Lab(SPOTD_EVERY="auto", SPOTD_EVERY_S="5", SPOTD_MTBF_S="28800")
    lab.saves.rates = Rates()
    assert lab.planner.every_s() == 60.0, "the first save measures"
    lab.saves.rates.add(GB, 0.5, 9.0)
    assert lab.planner.every_s() == pytest.approx(169.7, rel=0.001)
    assert [lab.planner.is_due(1000, s) for s in (169.0, 170.0)] == [False, True]
    lab.set_flag(None, mtbf_s=7200.0)
    assert lab.planner.every_s() == pytest.approx(84.9, rel=0.001)


@pytest.mark.req("CKP-08")
@pytest.mark.parametrize(("stall_s", "mtbf_h", "factor"), [(1.25, 8.0, 1.118), (1.0, 10.0, 1.118)])
def test_a_quarter_more_of_either_is_another_pause_at_the_next_look(
    stall_s: float, mtbf_h: float, factor: float
) -> None:
    lab = Lab(SPOTD_EVERY="auto", SPOTD_MTBF_S=str(8 * 3600))
    before = lab.planner.every_s()
    assert before == pytest.approx(240, rel=0.001)
    lab.saves.rates = Rates()
    lab.saves.rates.add(GB, stall_s, 9.0)
    lab.set_flag(None, mtbf_s=mtbf_h * 3600)
    assert lab.planner.every_s() == pytest.approx(before * factor, rel=0.001)


def test_money_makes_it_rarer() -> None:
    lab = Lab(SPOTD_EVERY="auto", SPOTD_MTBF_S="7200", SPOTD_GB_COSTS_S="8")
    assert lab.planner.every_s() == pytest.approx(360.0, rel=0.001)


def test_steps_and_seconds_stay_as_they_were_told() -> None:
    lab = Lab(SPOTD_EVERY_STEPS="10", SPOTD_EVERY_S="40", SPOTD_MTBF_S="7200")
    assert [lab.planner.is_due(n, s) for n, s in ((9, 39), (10, 1), (1, 40))] == [
        False,
        True,
        True,
    ]


def test_a_rank_without_a_checkpointer_follows() -> None:
    stop = StopRequests()
    planner = SavePlanner(Job.from_env({}), None, stop, lambda *_: None, reports=False)
    values = planner.rank_values(1, 2, 0.5)
    assert (values[:4], values[4], values[6:]) == ([0] * 4, 0, [0, 0])
    assert not planner.is_due(10**6, 1e6)
