"""What is kept of what was seen of a pool."""

from __future__ import annotations

import pytest

from spotd.decide.policy.record import GAP_S, UNSEEN, Sighting, recorded

H = 3600.0


def test_hours_and_ends_are_counted_by_the_age_they_were_seen_at() -> None:
    seen = [
        Sighting(0, True),
        Sighting(1 * H, True),
        Sighting(1.5 * H, False),
        Sighting(2 * H, True),
    ]
    record = recorded(seen)
    assert record.up_h == pytest.approx((0.5, 1.0, 0.0, 0.0))
    assert record.ends == (0, 1, 0, 0)
    assert record.down_h == pytest.approx((0.5, 0.0, 0.0, 0.0))
    assert record.returns == (0, 1, 0, 0)
    assert (record.up, record.since_s, record.seen_s, record.fresh) == (True, 2 * H, 2 * H, True)


def test_the_first_run_may_be_older_than_it_was_seen() -> None:
    assert not recorded([Sighting(5.0, True)]).fresh


def test_nothing_is_known_of_a_long_gap() -> None:
    record = recorded([Sighting(0, True), Sighting(GAP_S + 1, False)])
    assert record.ends == UNSEEN.ends
    assert record.up_h == UNSEEN.up_h
    assert (record.up, record.fresh) == (False, False)


def test_what_is_up_on_both_sides_of_a_gap_counts_as_one_run() -> None:
    record = recorded([Sighting(0, True), Sighting(GAP_S + 1, True)])
    assert record.since_s == 0
    assert record.up_h == UNSEEN.up_h


def test_an_older_sighting_changes_nothing() -> None:
    record = recorded([Sighting(0, True), Sighting(60, True)])
    assert record.after(Sighting(30, False)) == record


def test_a_refusal_at_the_same_moment_is_newer() -> None:
    assert recorded([Sighting(0, True), Sighting(0, False)]).up is False


def test_a_record_goes_on_from_what_was_known_before() -> None:
    seen = [Sighting(0, True), Sighting(H, False), Sighting(2 * H, True)]
    assert recorded(seen[1:], recorded(seen[:1])) == recorded(seen)
