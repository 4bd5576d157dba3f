"""When and how hard to stop training."""

from __future__ import annotations

import pytest

from trainer.agent.base.stop_timing import Stopping, StopStep, StopTiming, parse_stopping


@pytest.mark.parametrize(
    ("policy", "left_s", "expected_s"),
    [
        (StopTiming("spotd", 30.0), 120.0, 106.5),  # 5 + 1.3 x 5 + 2 before the end
        (StopTiming("spotd", 30.0, 0.1), 30.0, 27.77),
        (StopTiming("spotd", 30.0, 0.1, 3.0), 30.0, 24.77),  # and the step under way
        (StopTiming("spotd", 30.0, 40.0), 30.0, 0.0),  # it does not fit: at once
        (StopTiming("none", 30.0), 120.0, 89.0),
        (StopTiming("none", 30.0), 30.0, 15.0),  # half of a short notice is trained on
        (StopTiming("none", 5.0), 30.0, 24.0),
        (StopTiming("spotd", 30.0), -3.0, 0.0),
    ],
)
def test_the_latest_safe_moment(policy: StopTiming, left_s: float, expected_s: float) -> None:
    now = 1000.0
    assert policy.latest_stop(now, now + left_s) - now == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("policy", "left_s", "fits"),
    [
        (StopTiming("spotd", 30.0), 30.0, True),
        (StopTiming("spotd", 30.0), 14.9, False),  # 2 x 6.5 + 2
        (StopTiming("spotd", 30.0, 20.0), 30.0, False),
        (StopTiming("spotd", 30.0, 5.0, 7.4), 30.0, True),
        (StopTiming("spotd", 30.0, 5.0, 7.6), 30.0, False),  # a step before each of them
        (StopTiming("none", 30.0), 120.0, False),
    ],
)
def test_a_save_at_once_must_leave_time_for_the_last(
    policy: StopTiming, left_s: float, fits: bool
) -> None:
    assert policy.allows_snapshot(0.0, left_s) is fits


@pytest.mark.parametrize(
    ("policy", "expected_s"),
    [
        (StopTiming("none", 7.0, 100.0), 7.0),
        (StopTiming("spotd", 30.0), 30.0),
        (StopTiming("spotd", 30.0, 60.0), 314.0),
        (StopTiming("spotd", 30.0, 60.0, 6.0), 320.0),
    ],
)
def test_patience_without_a_deadline(policy: StopTiming, expected_s: float) -> None:
    assert policy.max_stop_s() == pytest.approx(expected_s)


def test_a_listener_gets_half_of_the_time_before_sigterm() -> None:
    gentle = Stopping("r", asked_at=10.0, kill_at=20.0, gentle=True)
    assert [gentle.next_step(t) for t in (10.0, 14.9, 15.0, 19.9, 20.0)] == [
        StopStep.WAIT,
        StopStep.WAIT,
        StopStep.TERM,
        StopStep.TERM,
        StopStep.KILL,
    ]
    gentle.termed = True
    assert gentle.next_step(16.0) is StopStep.WAIT


def test_others_get_it_at_once() -> None:
    assert Stopping("r", 10.0, 20.0, gentle=False).next_step(10.0) is StopStep.TERM


def test_time_only_gets_shorter() -> None:
    stopping = Stopping("r", 10.0, 20.0, gentle=True)
    stopping.advance(30.0)
    assert stopping.kill_at == 20.0
    stopping.advance(14.0)
    assert stopping.kill_at == 14.0
    stopping.advance(3.0)
    assert stopping.kill_at == 10.0


def test_it_survives_a_restart() -> None:
    stopping = Stopping("r", 10.0, 20.0, gentle=True, termed=True)
    assert parse_stopping(stopping.to_data()) == stopping
