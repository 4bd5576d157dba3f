"""When to stop, and how hard."""

from __future__ import annotations

import pytest

from trainer.agent.drain import Policy, Step, Stopping, parse_stopping


@pytest.mark.parametrize(
    ("policy", "left_s", "expected_s"),
    [
        (Policy("spotd", 30.0), 120.0, 106.5),  # 5 + 1.3 x 5 + 2 before the end
        (Policy("spotd", 30.0, 0.1), 30.0, 27.77),
        (Policy("spotd", 30.0, 0.1, 3.0), 30.0, 24.77),  # and the step under way
        (Policy("spotd", 30.0, 40.0), 30.0, 0.0),  # it does not fit: at once
        (Policy("none", 30.0), 120.0, 89.0),
        (Policy("none", 30.0), 30.0, 15.0),  # half of a short notice is trained on
        (Policy("none", 5.0), 30.0, 24.0),
        (Policy("spotd", 30.0), -3.0, 0.0),
    ],
)
def test_the_latest_safe_moment(policy: Policy, left_s: float, expected_s: float) -> None:
    now = 1000.0
    assert policy.latest_stop(now, now + left_s) - now == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("policy", "left_s", "fits"),
    [
        (Policy("spotd", 30.0), 30.0, True),
        (Policy("spotd", 30.0), 14.9, False),  # 2 x 6.5 + 2
        (Policy("spotd", 30.0, 20.0), 30.0, False),
        (Policy("spotd", 30.0, 5.0, 7.4), 30.0, True),
        (Policy("spotd", 30.0, 5.0, 7.6), 30.0, False),  # a step before each of them
        (Policy("none", 30.0), 120.0, False),
    ],
)
def test_a_save_at_once_must_leave_time_for_the_last(
    policy: Policy, left_s: float, fits: bool
) -> None:
    assert policy.fits_snapshot(0.0, left_s) is fits


@pytest.mark.parametrize(
    ("policy", "expected_s"),
    [
        (Policy("none", 7.0, 100.0), 7.0),
        (Policy("spotd", 30.0), 30.0),
        (Policy("spotd", 30.0, 60.0), 314.0),
        (Policy("spotd", 30.0, 60.0, 6.0), 320.0),
    ],
)
def test_patience_without_a_deadline(policy: Policy, expected_s: float) -> None:
    assert policy.patience_s() == pytest.approx(expected_s)


def test_a_listener_gets_half_of_the_time_before_sigterm() -> None:
    gentle = Stopping("r", asked_at=10.0, kill_at=20.0, gentle=True)
    assert [gentle.next_step(t) for t in (10.0, 14.9, 15.0, 19.9, 20.0)] == [
        Step.WAIT,
        Step.WAIT,
        Step.TERM,
        Step.TERM,
        Step.KILL,
    ]
    gentle.termed = True
    assert gentle.next_step(16.0) is Step.WAIT


def test_others_get_it_at_once() -> None:
    assert Stopping("r", 10.0, 20.0, gentle=False).next_step(10.0) is Step.TERM


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
