"""The simulation of preemptions comes to what the closed form says; with a broken policy it does
not."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import cadence
from cadence import OURS, PLACES, POLICIES, STATES, Result, expected, simulate

from trainer.hook.spotd_hook.deadline import Action, DeadlineSituation, StopPlan

HOURS = 600.0
pytestmark = pytest.mark.xdist_group("cadence")  # what one worker simulated, it knows
AWS = PLACES[0]
SMALL, LARGE = STATES


@cache
def found(policy: str, place: int, state: int, mtbf_h: float) -> Result:
    return simulate(policy, PLACES[place], STATES[state], mtbf_h, HOURS)


def fits(result: Result, policy: str, place: int, state: int, mtbf_h: float) -> bool:
    """Goodput within 0.01, minutes lost within a sixth and a tenth of a minute."""
    model = expected(policy, PLACES[place], STATES[state], mtbf_h)
    near = abs(result.lost_min - model.lost_min) <= 0.1 + model.lost_min / 6
    return near and abs(result.goodput - model.goodput) <= 0.01


@pytest.mark.parametrize("place", range(len(PLACES)), ids=[place.name for place in PLACES])
@pytest.mark.parametrize("state", [0, 1], ids=["8B", "70B"])
@pytest.mark.parametrize("mtbf_h", [2.0, 8.0])
def test_ours_is_as_the_closed_form_says(place: int, state: int, mtbf_h: float) -> None:
    assert fits(found(OURS, place, state, mtbf_h), OURS, place, state, mtbf_h)


@pytest.mark.parametrize("policy", [POLICIES[0], POLICIES[2]])
@pytest.mark.parametrize("state", [0, 1], ids=["8B", "70B"])
def test_so_are_the_others(policy: str, state: int) -> None:
    assert fits(found(policy, 1, state, 2.0), policy, 1, state, 2.0)


@pytest.mark.parametrize(
    ("policy", "place", "state", "mtbf_h", "goodput", "lost_min"),
    [
        # From another model, written before this code: 6000 h, the same rates and notices.
        (OURS, 0, 1, 2.0, 0.946, 1.25),
        (OURS, 1, 1, 2.0, 0.947, 1.26),
        (OURS, 2, 1, 2.0, 0.947, 1.20),
        (OURS, 3, 1, 2.0, 0.943, 1.5),
        (OURS, 0, 1, 8.0, 0.985, None),
        (OURS, 3, 1, 8.0, 0.983, None),
        (OURS, 0, 0, 2.0, 0.959, 0.38),
        (POLICIES[2], 0, 1, 2.0, 0.904, 5.6),
        (POLICIES[2], 0, 0, 2.0, 0.921, 5.0),
        (POLICIES[0], 0, 1, 2.0, 0.667, 16.2),
        (POLICIES[0], 0, 0, 2.0, 0.802, 14.6),
    ],
)
def test_another_model_of_the_same_came_to_the_same(
    policy: str, place: int, state: int, mtbf_h: float, goodput: float, lost_min: float | None
) -> None:
    result = found(policy, place, state, mtbf_h)
    assert result.goodput == pytest.approx(goodput, abs=0.01)
    assert lost_min is None or result.lost_min == pytest.approx(lost_min, rel=0.1, abs=0.5)


def test_ours_is_ahead_of_all_others_everywhere() -> None:
    for place in range(len(PLACES)):
        for state in (0, 1):
            ours = found(OURS, place, state, 2.0)
            for policy in POLICIES[:3]:
                other = found(policy, place, state, 2.0)
                assert ours.goodput > other.goodput
                assert ours.lost_min < other.lost_min


def always_at_once(now: DeadlineSituation) -> StopPlan:
    return StopPlan(Action.SAVE, 0.0, now.save_s, now.remaining_s - now.save_s, now)


def too_late(now: DeadlineSituation) -> StopPlan:
    action = Action.TRAIN if now.remaining_s > now.save_s / 2 else Action.SAVE
    return StopPlan(action, 0.0, now.save_s, 0.0, now)


def never(now: DeadlineSituation) -> StopPlan:
    return StopPlan(Action.RELEASE, 0.0, 0.0, now.remaining_s, now)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("plan", always_at_once),
        ("plan", too_late),
        ("plan", never),
        ("interval_s", lambda *_: 900.0),
        ("mtbf_s", lambda *_: 100 * 3600.0),
    ],
    ids=["save at the notice", "save too late", "release", "rarely", "long lives"],
)
def test_a_broken_policy_is_seen(name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [expected(OURS, place, LARGE, 2.0) for place in PLACES]
    monkeypatch.setattr(cadence, name, broken)
    results = [simulate(OURS, place, LARGE, 2.0, 300.0) for place in PLACES]
    assert any(
        abs(result.lost_min - model.lost_min) > 0.1 + model.lost_min / 6
        for result, model in zip(results, plain, strict=True)
    )


def test_the_same_seed_is_the_same_run_and_another_one_is_not() -> None:
    runs = [simulate(OURS, AWS, SMALL, 2.0, 50.0, seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
