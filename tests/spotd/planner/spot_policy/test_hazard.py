"""How a pool compares to the law of ages, and what is learned of it."""

from __future__ import annotations

import pytest

from spotd.planner.spot_policy import UNSEEN, PoolRecord, Sighting, recorded
from spotd.planner.spot_policy.hazard import (
    LIFT,
    HazardScale,
    ends_within,
    fleet_scale,
    found_age_h,
    lifted,
    scale,
)
from spotd.planner.spot_policy.pool_record import UNKNOWN_AGE_H

H = 3600.0
EVEN = HazardScale(1.0, 1.0)


def flapping(times: int) -> PoolRecord:
    """Up for ten minutes of each twenty."""
    return recorded(Sighting(600.0 * n, up=n % 2 == 0) for n in range(2 * times))


def steady(hours: int) -> PoolRecord:
    return recorded(Sighting(1800.0 * n, up=True) for n in range(2 * hours + 1))


def test_of_what_nobody_saw_the_law_holds() -> None:
    assert fleet_scale([UNSEEN, UNSEEN]) == EVEN
    assert scale(UNSEEN, EVEN) == EVEN


def test_a_pool_is_what_was_seen_of_it_and_the_fleet_where_little_was() -> None:
    often, seldom = scale(flapping(20), EVEN), scale(steady(24), EVEN)
    assert often.ends > 2
    assert seldom.ends < 0.5
    assert scale(UNSEEN, HazardScale(2.0, 0.5)) == HazardScale(2.0, 0.5)
    assert 1 < scale(flapping(1), EVEN).ends < often.ends
    assert often.returns > 2


def test_one_pool_that_comes_and_goes_all_day_is_not_the_fleet() -> None:
    a_few, all_day = fleet_scale([flapping(4)]), fleet_scale([flapping(100)])
    assert all_day.ends == pytest.approx(a_few.ends, rel=0.1)
    assert fleet_scale([flapping(4), flapping(4)]).ends > a_few.ends


def test_what_ends_often_or_returns_late_is_seldom_there() -> None:
    assert EVEN.available == pytest.approx(0.6)
    assert HazardScale(2.0, 1.0).available < 0.6 < HazardScale(1.0, 2.0).available


@pytest.mark.parametrize(
    ("record", "now_h", "age_h"),
    [
        (UNSEEN, 5.0, UNKNOWN_AGE_H),
        (PoolRecord(up=True, since_s=0.0, seen_s=4 * H, fresh=True), 4.0, 4.0),
        (PoolRecord(up=True, since_s=0.0, seen_s=4 * H, fresh=True), 5.0, 5.0),
        (PoolRecord(up=True, since_s=0.0, seen_s=4 * H, fresh=True), 5.5, UNKNOWN_AGE_H + 0.75),
        (PoolRecord(up=True, since_s=0.0, seen_s=4 * H), 4.0, 4.0 + UNKNOWN_AGE_H),
        (PoolRecord(up=True, since_s=0.0, seen_s=4 * H, fresh=True), 8.0, UNKNOWN_AGE_H + 2.0),
        (PoolRecord(up=False, since_s=0.0, seen_s=4 * H), 4.2, 0.1),
        (PoolRecord(up=False, since_s=0.0, seen_s=4 * H), 9.0, UNKNOWN_AGE_H),
    ],
    ids=[
        "unseen",
        "seen now",
        "seen an hour ago",
        "or longer",
        "seen first",
        "seen long ago",
        "gone just now",
        "gone long ago",
    ],
)
def test_the_age_that_a_launch_finds(record: PoolRecord, now_h: float, age_h: float) -> None:
    assert found_age_h(record, now_h * H) == pytest.approx(age_h)


def test_an_end_makes_ends_nearby_likelier_for_a_while() -> None:
    gone = recorded([Sighting(0.0, True), Sighting(H, False)])
    records = {"c": UNSEEN, "a": gone, "b": UNSEEN}
    regions = {"a": "r", "b": "r", "c": "elsewhere"}
    assert lifted(records, regions, H + 600) == {"a": LIFT, "b": LIFT, "c": 1.0}
    assert lifted(records, regions, H + 1800) == {"a": LIFT, "b": LIFT, "c": 1.0}
    assert lifted(records, regions, H + 3600) == {"a": LIFT, "b": 1.0, "c": 1.0}
    assert lifted(records, regions, H + 2400) == {"a": LIFT, "b": 1.0, "c": 1.0}
    assert lifted(records, regions, 3 * H) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_what_was_down_from_the_first_has_not_ended() -> None:
    down = recorded([Sighting(H, False)])
    assert lifted({"a": down}, {"a": "r"}, H) == {"a": 1.0}


def test_what_is_old_lasts() -> None:
    young, old = ends_within(0.0, 1.0, 1.0), ends_within(12.0, 1.0, 1.0)
    assert 0 < old < 0.15
    assert 0.5 < young < 1
    assert ends_within(12.0, 1.0, 3.0) > old
