"""Checks of reported losses, whichever engine saves."""

from __future__ import annotations

import math

import pytest

from spotd import wire
from trainer.agent.watch.loss_checks import (
    BASELINE,
    FIRST_LOSSES,
    MIN_BASELINE,
    NON_FINITE_RUN,
    RECENT,
    LossChecker,
)
from trainer.agent.watch.metrics_parser import MetricsParser
from trainer.agent.watch.straggler_detector import StragglerDetector

NONE = [math.nan]


def told(losses: LossChecker, numbers: list[float], from_step: int = 1) -> list[str]:
    return [remark.verdict for remark in losses.add(from_step, numbers)]


def steady(count: int, level: float = 2.0) -> list[float]:
    """Losses that scatter by 5 % around a level."""
    return [level * (1 + 0.05 * math.sin(step)) for step in range(count)]


@pytest.mark.parametrize("none", [math.nan, math.inf, -math.inf])
def test_a_hundred_in_a_row_are_the_end_and_one_less_is_not(none: float) -> None:
    losses = LossChecker()
    assert told(losses, [2.0]) == []
    assert told(losses, [none] * (NON_FINITE_RUN - 1)) == []
    assert told(losses, [2.0]) == [], "it came back"
    assert told(losses, [none] * NON_FINITE_RUN) == ["nan"]
    assert told(losses, [none] * NON_FINITE_RUN) == [], "told once"
    assert told(losses, [2.0, *[none] * NON_FINITE_RUN]) == ["nan"], "and again when it comes again"


def test_a_program_that_reports_no_losses_at_all_is_not_judged() -> None:
    assert told(LossChecker(), NONE * 10 * NON_FINITE_RUN) == []


def test_none_in_the_first_steps_after_a_resume_is_about_its_checkpoint() -> None:
    losses = LossChecker()
    losses.begin(40)
    assert told(losses, NONE * (FIRST_LOSSES - 1), 41) == []
    (remark,) = losses.add(41 + FIRST_LOSSES - 1, NONE)
    assert (remark.verdict, remark.data) == ("nan_after_resume", {"step": 45, "resumed_at": 40})
    assert told(losses, NONE * 20, 46) == []


@pytest.mark.parametrize(
    ("resumed_at", "numbers"),
    [(0, NONE * 50), (40, [2.0, *NONE * 50]), (40, [*NONE * (FIRST_LOSSES - 1), 2.0, *NONE * 50])],
)
def test_later_ones_and_those_of_a_new_program_are_not(
    resumed_at: int, numbers: list[float]
) -> None:
    losses = LossChecker()
    losses.begin(resumed_at)
    assert told(losses, numbers, resumed_at + 1) == []


def test_a_spike_is_told_once_an_episode() -> None:
    losses = LossChecker()
    assert told(losses, steady(BASELINE)) == []
    assert told(losses, [9.0] * (RECENT // 2 - 1)) == [], "a few batches are not a spike"
    (remark,) = losses.add(BASELINE + 5, [9.0] * RECENT)
    assert remark.verdict == "loss_spike"
    assert "9 at step 214, and was 2" in remark.text
    assert told(losses, [9.0] * 20) == []
    assert told(losses, steady(3 * BASELINE)) == []
    assert told(losses, [9.0] * RECENT) == ["loss_spike"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (steady(MIN_BASELINE), [3.9] * RECENT),  # less than twice
        (steady(MIN_BASELINE - 1), [9.0] * (RECENT - 1)),  # too little is known
        ([0.5, 6.0] * MIN_BASELINE, [9.0] * RECENT),  # it scatters as much
        (steady(MIN_BASELINE), [9.0] * 4 + [2.0] * 6),  # less than half of them
        ([-2.0] * MIN_BASELINE, [9.0] * RECENT),  # no loss that such a rule fits
        ([10.0 / (1 + step) for step in range(MIN_BASELINE)], [0.3] * RECENT),  # a beginning
    ],
)
def test_what_is_no_spike(before: list[float], after: list[float]) -> None:
    losses = LossChecker()
    assert told(losses, before) == []
    assert told(losses, after) == []


def test_of_a_resume_the_checkpoint_is_named() -> None:
    figures = MetricsParser(StragglerDetector())
    figures.on_fact(wire.CLAIMED, {"step": 8, "manifest": "m-8"}, 0.0)
    report = {"from_step": 9, "losses": NONE * FIRST_LOSSES}
    (remark,) = figures.on_fact(wire.PROGRESS, report, 1.0)
    assert remark.to_data()["about"]["manifest"] == "m-8"
    assert remark.to_data()["verdict"] == "nan_after_resume"


def test_a_program_that_went_back_by_itself_is_given_a_new_beginning() -> None:
    figures = MetricsParser(StragglerDetector())
    figures.on_fact(
        wire.PROGRESS, {"from_step": 1, "losses": [2.0, *NONE * (NON_FINITE_RUN - 1)]}, 0.0
    )
    figures.on_fact(wire.ROLLED_BACK, {"step": 0, "from_step": 99}, 0.0)
    assert figures.on_fact(wire.PROGRESS, {"from_step": 100, "losses": NONE * 5}, 0.0) == []


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"from_step": "1", "losses": [1.0]},
        {"from_step": 1, "losses": "x"},
        {"from_step": 1, "losses": ["x", None, {}]},
        {"from_step": 1, "losses": [], "ranks_s": ["x"]},
        {"from_step": 1, "losses": [], "ranks_s": [-1.0, 2.0]},
        {"from_step": 1, "losses": [], "ranks_s": [1.0, 2.0], "ranks_per_node": "x"},
    ],
)
def test_nonsense_is_passed_over(data: dict[str, object]) -> None:
    assert MetricsParser(StragglerDetector()).on_fact(wire.PROGRESS, data, 0.0) == []
