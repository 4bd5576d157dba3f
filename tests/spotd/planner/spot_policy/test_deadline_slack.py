"""A deadline is kept whatever spot does, as long as on-demand is granted in time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotd.planner.spot_policy import Action, RemainingWork, RunningGang, Situation, choose
from spotd.planner.spot_policy.deadline_slack import (
    earliest_s,
    late_s,
    must_be_on_demand,
    spare_looks,
)
from tests.spotd.planner.spot_policy.build import ON_DEMAND, SPOT, H, pool, situation


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 117),  # 360 looks to the deadline, 240 of work, 1.2 of a restart, one that is late
        ({"unsaved_s": 1800.0}, 114),
        ({"granted_s": 600.0}, 116),
        ({"deadline_s": 40 * H + 720}, -2),  # to the second, but looks are begun
        ({"restart_s": 600.0}, 118),  # a start of one look is one
        ({"deadline_s": 40 * H}, -3),
        ({"deadline_s": None}, math.inf),
        ({"now_s": 10 * H}, 57),
    ],
)
def test_looks_to_spare(changes: dict[str, float], expected: float) -> None:
    assert spare_looks(situation(**changes)) == expected


def test_a_move_on_the_way_to_on_demand_counts() -> None:
    assert spare_looks(situation(pool(transfer_s=1800.0))) == 114


def test_without_on_demand_nothing_can_be_forced() -> None:
    assert spare_looks(situation(pool(on_demand_usd_per_h=None))) == math.inf


def test_at_the_last_moment_on_demand_is_asked_for() -> None:
    late = situation(deadline_s=40 * H + 1800)
    assert must_be_on_demand(late)
    choice = choose(late)
    assert (choice.action, choice.pool, choice.guarded) == (Action.ON_DEMAND, "a", True)
    assert choice.late_s == 0


@pytest.mark.parametrize(("spare", "forced"), [(0, True), (1, False)])
def test_a_look_to_spare_is_one_that_may_pass(spare: int, *, forced: bool) -> None:
    told = situation(deadline_s=40 * H + 600.0 * (3 + spare), restart_s=1200.0)
    assert spare_looks(told) == spare
    assert must_be_on_demand(told) is forced


def test_the_slowest_that_is_sold_on_demand_has_to_be_in_time() -> None:
    fast = pool("fast", speed=2.0)
    assert spare_looks(situation(fast)) == 117 + 120
    assert spare_looks(situation(fast, pool("slow"))) == 117
    spot = pool("spot", speed=0.5, on_demand_usd_per_h=None)
    assert spare_looks(situation(fast, spot)) == 117 + 120


def test_on_demand_that_runs_goes_on() -> None:
    runs = situation(running=RunningGang("a", ON_DEMAND, 0.0), deadline_s=40 * H + 1800)
    assert choose(runs).action is Action.STAY


def test_spot_that_runs_is_left_at_the_last_moment() -> None:
    runs = situation(running=RunningGang("a", SPOT, 0.0), deadline_s=40 * H + 1800)
    assert choose(runs).action is Action.ON_DEMAND


def test_how_late_it_gets() -> None:
    assert late_s(situation(deadline_s=40 * H)) == 720
    assert late_s(situation(deadline_s=None)) == 0
    fast, runs = pool("fast", speed=2.0), RunningGang("fast", ON_DEMAND, 0.0, 60.0)
    assert late_s(situation(pool("a"), fast, deadline_s=19 * H, running=runs)) == H + 60
    assert late_s(situation(pool("a"), fast, deadline_s=21 * H, running=runs)) == 0
    assert late_s(situation(deadline_s=39 * H, running=RunningGang("a", SPOT, 0.0, 60.0))) == H + 60


def test_the_earliest_deadline_can_be_kept() -> None:
    asked = situation()
    kept = replace(asked, work=replace(asked.work, deadline_s=earliest_s(asked)))
    assert late_s(kept) == 0
    assert spare_looks(kept) >= 0


@settings(deadline=None)  # the first look takes a busy machine longer
@given(
    there=st.lists(st.booleans(), min_size=40, max_size=120),
    slack_looks=st.integers(4, 60),
    saved_each=st.integers(0, 6),
    granted_looks=st.integers(0, 3),
    restart_s=st.sampled_from([0.0, 72.0, 720.0, 1440.0]),
)
def test_no_spot_market_makes_it_late(
    there: list[bool], slack_looks: int, saved_each: int, granted_looks: int, restart_s: float
) -> None:
    """An adversary takes spot away at any look, unsaved work with it; each on-demand launch takes
    all the time that it may."""
    look, work_s = 600.0, 30 * 600.0
    need = work_s + restart_s + granted_looks * look
    deadline_s = math.ceil(need / look) * look + slack_looks * look
    work = RemainingWork(
        work_s,
        deadline_s,
        restart_s,
        granted_s=granted_looks * look,
        look_s=look,
        lost_s=saved_each * look,
    )
    state = Situation(0.0, work, (pool(),))
    done, unsaved, start, mode = 0.0, 0.0, 0.0, None
    for number in range(int(deadline_s / look)):
        if mode is SPOT and not there[number % len(there)]:
            done, unsaved, mode = done - unsaved, 0.0, None
        work = replace(state.work, left_s=work_s - done, unsaved_s=unsaved)
        running = None if mode is None else RunningGang("a", mode, 0.0, start)
        choice = choose(replace(state, now_s=number * look, work=work, running=running))
        if choice.action is Action.ON_DEMAND:
            mode, start, unsaved = ON_DEMAND, restart_s + granted_looks * look, 0.0
        elif choice.action is Action.SPOT and there[number % len(there)]:
            mode, start, unsaved = SPOT, restart_s, 0.0
        elif choice.action is Action.WAIT:
            mode = None
        if mode is None:
            continue
        useful = max(0.0, look - start)
        start = max(0.0, start - look)
        done += useful
        if mode is SPOT and saved_each:
            unsaved += useful
            if (number + 1) % saved_each == 0:
                unsaved = 0.0
        if done >= work_s - 1e-6:
            return
    pytest.fail(f"{(work_s - done) / look} looks of work are left at the deadline")
