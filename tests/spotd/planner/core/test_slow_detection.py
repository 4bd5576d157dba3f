"""Slow is below 60 % of the job's own pace in each of the last four windows of 30 s."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotd.domain.health import HealthSpec
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import Throughput
from spotd.planner.core.slow_detection import MIN_BASELINE_SAMPLES, baseline_tokens_per_s, slow
from tests.spotd.planner.build import NOW, kinds, node, settle, view

SPEC = HealthSpec()
ROUND_S = 120.0


def at(ago_s: float, rate: float = 100.0, busy_s: float = 10.0) -> Throughput:
    return Throughput(1, NOW - int(ago_s * S), 0, int(rate * busy_s), busy_s)


def every(step_s: float, start_s: float, end_s: float, rate: float) -> list[Throughput]:
    """Reports from `start_s` ago to `end_s` ago."""
    count = int((start_s - end_s) / step_s)
    return [at(start_s - step_s * number, rate) for number in range(count + 1)]


GOOD = every(10, 600, 125, 100.0)


@pytest.mark.req("HLT-03", "HLT-06", "HLT-08")
@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        (every(10, 119, 0, 100.0), False),
        (every(10, 119, 0, 60.0), False),  # 60 % is enough
        (every(10, 119, 0, 59.0), True),
        (every(10, 119, 0, 0.0), True),
        ([], True),  # a silent trainer is not a fast one
        (every(10, 29, 0, 10.0), True),  # silent, then slow
        (every(10, 119, 31, 10.0) + [at(5, 100.0)], False),  # it has recovered
        ([at(100, 10.0), at(80, 100.0), at(50, 10.0), at(20, 10.0)], False),  # not every window
        ([at(100, 10.0), at(80, 10.0), at(50, 10.0), at(20, 10.0)], True),
        (every(10, 119, 0, 10.0) + [at(3, 1e6, busy_s=0.0)], True),  # an empty report is no data
        ([at(100, 0, 0), at(80, 0, 0), at(50, 0, 0), at(20, 0, 0)], False),  # saves, evaluation
        ([at(100, 10.0), at(80, 10.0), at(50, 0, 0), at(20, 10.0)], False),
    ],
)
def test_table(recent: list[Throughput], expected: bool) -> None:
    assert slow([*GOOD, *recent], SPEC, NOW) is expected


@pytest.mark.parametrize(("onset_s", "expected"), [(85, False), (125, True)])
def test_it_takes_four_checks_and_no_more_than_a_round(onset_s: float, expected: bool) -> None:
    """90 to 120 s after the onset, by where the windows happen to lie."""
    samples = every(5, 900, onset_s, 100.0) + every(5, onset_s - 5, 0, 30.0)
    assert slow(samples, SPEC, NOW) is expected


def test_a_job_without_a_past_is_not_slow() -> None:
    few = [at(200 + 10 * number) for number in range(MIN_BASELINE_SAMPLES - 1)]
    assert not slow(few, SPEC, NOW)
    assert slow([*few, at(199)], SPEC, NOW)


def test_the_baseline_is_from_before_the_windows() -> None:
    """A job that has slowed down must not become its own measure while it is being judged."""
    assert not slow(every(10, 119, 0, 10.0), SPEC, NOW)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], 0.0),
        ([at(1)] * 3, 0.0),
        ([at(1)] * 4, 100.0),
        ([at(1, 10.0), at(1, 20.0), at(1, 30.0), at(1, 1e6)], 25.0),
        ([at(1, 10.0), at(1, 20.0), at(1, 30.0), at(1, 40.0), at(1, 1e6)], 30.0),
        ([at(1), at(1), at(1), at(1, busy_s=0.0)], 0.0),
        ([at(1), at(1), at(1), at(-1)], 0.0),
    ],
)
def test_the_baseline_is_the_median_of_what_is_data(
    samples: list[Throughput], expected: float
) -> None:
    assert baseline_tokens_per_s(samples, NOW) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [({}, True), ({"ratio": 0.2}, False), ({"checks": 40}, False), ({"check_every_s": 5.0}, True)],
)
def test_the_numbers_are_the_jobs_own(change: dict[str, float], expected: bool) -> None:
    samples = [*GOOD, *every(5, 119, 0, 30.0)]
    assert slow(samples, replace(SPEC, **change), NOW) is expected


@given(st.lists(st.floats(0.0, 600.0), max_size=40), st.floats(61.0, 1000.0))
def test_a_steady_job_is_never_slow(ages: Iterable[float], rate: float) -> None:
    steady = [at(ago_s, rate) for ago_s in ages]
    reported = [at(30.0 * number + 10, rate) for number in range(20)]
    assert not slow([*steady, *reported], SPEC, NOW)


# --- what follows


SLOW = (*GOOD, *every(10, 119, 0, 10.0))


@pytest.mark.req("HLT-03", "HLT-05")
def test_slow_training_is_saved_once_a_round_and_told() -> None:
    before = view(node(NodeState.RUNNING), throughput=SLOW)
    after, plan = settle(before)
    assert after.job.progress.save_wanted_at_us == NOW
    assert "slow" in kinds(plan)
    (event,) = [event for event in plan.events if event.kind == "slow"]
    assert event.alert
    assert "60%" in event.text
    again, plan = settle(after, now=NOW + int((ROUND_S - 1) * S))
    assert again.job.progress.save_wanted_at_us == NOW
    assert "slow" not in kinds(plan)


@pytest.mark.parametrize(
    "before",
    [
        view(node(NodeState.DRAINING), throughput=SLOW),
        view(throughput=SLOW),
        view(node(NodeState.RUNNING), throughput=SLOW, job={"stop_text": "over budget"}),
        view(node(NodeState.RUNNING), throughput=GOOD[:3]),
    ],
)
def test_nothing_is_saved_where_there_is_nothing_to_save_or_it_is_saved_anyway(
    before: object,
) -> None:
    after, plan = settle(before)  # type: ignore[arg-type]
    assert after.job.progress.save_wanted_at_us == 0
    assert "slow" not in kinds(plan)
