"""What spotd would have saved or lost, by hand: known, unknown, and worse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotd.domain.units import S
from spotd.history.shadow import Attempt, AttemptEnd, Bounds, ShadowAssumptions, shadow

HOUR = 3600 * S
HABITS = ShadowAssumptions(every_s=120.0, checkpoint_gb=10.0)
# An hour of 1,800 steps of 2 s, taken away at step 1,799; the next machine asked for after 45 s,
# and training again after 300 s from step 1,500.
FIRST = Attempt("gpt", 0, HOUR, AttemptEnd.PREEMPTED, 0, 0, 0, 1799, 20.0, None, "aws/us-east-1")
AGAIN_US = HOUR + 300 * S
SECOND = Attempt(
    "gpt", AGAIN_US, AGAIN_US + HOUR, AttemptEnd.DONE, HOUR + 45 * S, AGAIN_US, 1500, 3299, 20.0
)


def near(result: Bounds, low: float | None, high: float | None) -> bool:
    return (result.low, result.high) == (
        None if low is None else pytest.approx(low),
        None if high is None else pytest.approx(high),
    )


def test_a_death_of_which_all_is_known() -> None:
    (item,) = shadow([FIRST, SECOND], HABITS).interruptions
    assert item.gap_s == 300
    # 300 steps again there; at most 120 s / 2 s = 60 here.
    assert near(item.steps, 240, 300)
    # 45 s until the request there, 0.124 to 9.212 s here; 300 steps of 2 s, less 120 s at most.
    assert near(item.minutes, (45 - 9.212) / 60 + 480 / 60, (45 - 0.124) / 60 + 600 / 60)
    assert near(item.usd, 480 / 3600 * 20, 600 / 3600 * 20)
    assert item.notes == ()


def test_saves_are_ours_to_pay() -> None:
    result = shadow([FIRST, SECOND], HABITS)
    # Two hours of saves each 120 s of 10 GB: 60 * 10 * (0.392 to 0.611) / 1.66 s.
    low_s, high_s = -60 * 10 * 0.611 / 1.66, -60 * 10 * 0.392 / 1.66
    assert near(result.saves_minutes, low_s / 60, high_s / 60)
    assert near(result.saves_usd, low_s / 3600 * 20, high_s / 3600 * 20)
    assert result.usd == result.interruptions[0].usd + result.saves_usd


def test_a_log_without_interruptions_is_a_loss() -> None:
    """Nothing to save, and saves all the same."""
    result = shadow([replace(FIRST, end=AttemptEnd.DONE)], HABITS)
    assert result.interruptions == ()
    assert result.minutes.high is not None
    assert result.minutes.high < 0
    assert result.usd.high is not None
    assert result.usd.high < 0
    unknown = shadow([replace(FIRST, end=AttemptEnd.DONE)], ShadowAssumptions())
    assert near(unknown.minutes, None, 0.0), (
        "of saves whose size nobody said, the cost is not known"
    )


def test_where_another_was_quicker_it_is_told() -> None:
    """Asked again within a tenth of a second, from the last step: spotd would have lost."""
    quick = replace(SECOND, requested_us=HOUR + S // 10, first_step=1800, last_step=3599)
    (item,) = shadow([FIRST, quick], HABITS).interruptions
    assert near(item.steps, -60, 0)
    assert near(item.minutes, (0.1 - 9.212) / 60 - 2, (0.1 - 0.124) / 60)
    assert item.usd.high == 0
    assert item.minutes.high is not None
    assert item.minutes.high < 0


def test_a_machine_that_was_lost_may_have_looked_alive() -> None:
    (item,) = shadow([replace(FIRST, end=AttemptEnd.LOST), SECOND], HABITS).interruptions
    assert near(item.minutes, (45 - 123.8) / 60 + 8, (45 - 0.124) / 60 + 10)


def test_a_notice_costs_no_step_and_two_machines_for_a_while() -> None:
    (item,) = shadow([replace(FIRST, notice_s=120.0), SECOND], HABITS).interruptions
    assert near(item.steps, 300, 300)
    # The next machine took 255 s from its request: 135 s of them after the end of this one.
    assert near(item.minutes, (300 - 135) / 60 + 10, (300 - 135) / 60 + 10)
    assert near(item.usd, (600 - 120) / 3600 * 20, 600 / 3600 * 20)
    long = replace(FIRST, notice_s=600.0)
    (ready,) = shadow([long, SECOND], HABITS).interruptions
    assert near(ready.minutes, (300 - 0.367) / 60 + 10, (300 - 0.167) / 60 + 10)


def test_without_the_moment_of_the_request_it_is_a_range() -> None:
    (item,) = shadow([FIRST, replace(SECOND, requested_us=None)], HABITS).interruptions
    assert near(item.minutes, -9.212 / 60 + 8, (300 - 0.124) / 60 + 10)
    assert item.notes == ("the request for the next machine is not in the log",)


def test_without_steps_what_was_done_again_is_not_known() -> None:
    first = replace(FIRST, first_step=None, last_step=None)
    (item,) = shadow([first, SECOND], HABITS).interruptions
    assert near(item.steps, None, None)
    assert near(item.minutes, (45 - 9.212 - 120) / 60, None)
    assert near(item.usd, -120 / 3600 * 20, None)
    (half,) = shadow([FIRST, replace(SECOND, first_step=None)], HABITS).interruptions
    assert near(half.steps, -60, None)


def test_without_a_price_no_dollars() -> None:
    both = [replace(FIRST, usd_per_h=None), replace(SECOND, usd_per_h=None)]
    result = shadow(both, HABITS)
    assert near(result.usd, None, None)
    assert "no price" in result.interruptions[0].notes
    assert result.minutes.low is not None


def test_a_job_that_does_not_come_back() -> None:
    result = shadow([FIRST], HABITS)
    (item,) = result.interruptions
    assert item.gap_s is None
    assert near(item.minutes, None, None)
    assert result.open == ("gpt",)


def test_failures_and_stops_are_no_interruptions() -> None:
    for end in (AttemptEnd.FAILED, AttemptEnd.STOPPED, AttemptEnd.DONE, AttemptEnd.UNKNOWN):
        assert shadow([replace(FIRST, end=end), SECOND], HABITS).interruptions == ()


def test_jobs_are_told_apart_and_stays_come_in_any_order() -> None:
    other = replace(FIRST, job="bert", end=AttemptEnd.LOST)
    result = shadow([SECOND, other, FIRST], HABITS)
    assert [(item.job, item.gap_s) for item in result.interruptions] == [
        ("bert", None),
        ("gpt", 300.0),
    ]
    assert (result.jobs, result.hours) == (2, 3.0)
