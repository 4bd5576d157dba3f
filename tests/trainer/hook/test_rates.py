"""Estimates of save times from previous saves."""

from __future__ import annotations

import pytest

from trainer.hook.spotd_hook.rates import DEFAULT_UPLOAD_S, SAVES, Rates

GB = 10**9


def rates(*uploads_s: float, stage_s: float = 1.0) -> Rates:
    measured = Rates()
    for upload_s in uploads_s:
        measured.add(GB, stage_s, upload_s)
    return measured


def test_before_the_first_save_it_is_a_guess() -> None:
    assert (Rates().measured, rates(1.0).measured) == (False, True)
    assert Rates().save_s(GB) == DEFAULT_UPLOAD_S
    assert Rates().stall_s(GB) == 0


def test_the_slowest_tenth_counts_for_a_deadline_and_the_middle_for_the_stall() -> None:
    measured = Rates()
    for number in range(20):
        measured.add(GB, 0.1 * (number + 1), number + 1.0)
    assert measured.upload_s(GB) == 18.0
    assert measured.stall_s(GB) == pytest.approx(1.0)
    assert measured.save_s(GB) == pytest.approx(18.0 + 1.8)


def test_a_larger_snapshot_takes_longer() -> None:
    measured = rates(10.0)
    assert measured.save_s(2 * GB) == pytest.approx(22.0)
    assert measured.stall_s(GB // 2) == pytest.approx(0.5)


def test_old_saves_are_forgotten() -> None:
    assert rates(100.0, *[1.0] * SAVES).upload_s(GB) == 1.0


@pytest.mark.parametrize(
    ("elapsed_s", "done", "remaining_s"),
    [
        (0.0, 0, 10.0),
        (4.0, 0, 6.0),
        (30.0, 0, 1.0),  # longer than expected: it may end at any moment, or not
        (4.0, GB // 2, 5.0),  # faster than usual may not last
        (10.0, GB // 2, 10.0),  # slower than usual
        (3.0, GB // 20, 14.25),  # its first parts are no pace yet: that would be 57 s
        (10.0, GB // 4, 18.75),  # a slow one is seen before its middle
        (10.0, GB, 0.0),
    ],
)
def test_what_is_left_of_an_upload(elapsed_s: float, done: int, remaining_s: float) -> None:
    assert rates(10.0).remaining_s(GB, elapsed_s, done) == pytest.approx(remaining_s)
