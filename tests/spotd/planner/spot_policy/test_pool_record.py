"""What is kept of what was seen of a pool."""

from __future__ import annotations

import pytest

from spotd.planner.spot_policy.pool_record import (
    GAP_S,
    UNKNOWN_AGE_H,
    UNSEEN,
    Sighting,
    expected,
    rate,
    recorded,
)

H = 3600.0


def test_ends_are_counted_beside_what_the_law_expects() -> None:
    seen = [
        Sighting(0, True),
        Sighting(1 * H, True),
        Sighting(1.5 * H, False),
        Sighting(2 * H, True),
    ]
    record = recorded(seen)
    assert (record.ends, record.returns) == (1, 1)
    assert record.expected_ends == pytest.approx(expected(UNKNOWN_AGE_H, 1.5))
    assert record.expected_returns == pytest.approx(expected(0.0, 0.5))
    assert (record.up, record.since_s, record.seen_s, record.fresh) == (True, 2 * H, 2 * H, True)
    assert record.age_h(3 * H) == 1.0


def test_the_law_falls_with_age_and_its_integral_is_its_sum() -> None:
    steps = [expected(hour / 100, 0.01) for hour in range(600)]
    assert sum(steps) == pytest.approx(expected(0.0, 6.0))
    assert steps == sorted(steps, reverse=True)
    assert steps[100] == pytest.approx(0.01 * rate(1.005), rel=1e-3)


def test_the_first_run_may_be_older_than_it_was_seen() -> None:
    assert not recorded([Sighting(5.0, True)]).fresh


def test_nothing_is_known_of_a_long_gap() -> None:
    record = recorded([Sighting(0, True), Sighting(GAP_S + 1, False)])
    assert record.ends == UNSEEN.ends
    assert record.expected_ends == 0
    assert (record.up, record.fresh) == (False, False)


def test_what_is_up_on_both_sides_of_a_gap_counts_as_one_run() -> None:
    record = recorded([Sighting(0, True), Sighting(GAP_S + 1, True)])
    assert record.since_s == 0
    assert record.expected_ends == 0


def test_after_a_day_nobody_knows_whether_it_is_the_same_run() -> None:
    record = recorded([Sighting(0, False), Sighting(H, True), Sighting(25 * H, True)])
    assert (record.since_s, record.fresh) == (25 * H, False)


def test_an_older_sighting_changes_nothing() -> None:
    record = recorded([Sighting(0, True), Sighting(60, True)])
    assert record.after(Sighting(30, False)) == record


def test_a_refusal_at_the_same_moment_is_newer() -> None:
    assert recorded([Sighting(0, True), Sighting(0, False)]).up is False


def test_a_record_goes_on_from_what_was_known_before() -> None:
    seen = [Sighting(0, True), Sighting(H, False), Sighting(2 * H, True)]
    assert recorded(seen[1:], recorded(seen[:1])) == recorded(seen)


def test_after_a_gap_it_is_looked_at_as_before() -> None:
    record = recorded([Sighting(0, True), Sighting(GAP_S + 1, True), Sighting(GAP_S + 601, False)])
    assert record.ends == 1
    assert record.seen_s == GAP_S + 601


def test_a_second_counts_and_none_does_not() -> None:
    record = recorded([Sighting(0, True), Sighting(1, True)])
    assert (record.seen_s, record.expected_ends > 0) == (1, True)
    assert record.after(Sighting(1, True)) == record


def test_six_hours_are_still_the_same_run() -> None:
    last, later = (recorded([Sighting(0, True), Sighting(at, True)]) for at in (6 * H, 6 * H + 1))
    assert (last.since_s, later.since_s) == (0, 6 * H + 1)
