"""Machines counted by hand: rates with their hours, notices, launches, hours of the day."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spotd.domain.states import LeaveReason
from spotd.domain.units import US_PER_H, S
from spotd.history.interruption_stats import (
    GroupBy,
    InterruptionRate,
    MachineLife,
    compare_with_prior,
    count,
    hour_of,
    total,
    weekday_of,
)

MONDAY = 1_763_942_400 * S  # 2025-11-24T00:00Z
KEY = "aws/us-east-1/us-east-1a/p5.48xlarge/spot"
H = US_PER_H
BY_CLOUD = (GroupBy.CLOUD, "spot", MONDAY, MONDAY + 100 * H)


def life(
    start_h: float, hours: float, reason: LeaveReason | None = None, **more: object
) -> MachineLife:
    """One that was asked for at `start_h` after Monday, came a minute later."""
    asked = MONDAY + int(start_h * H)
    launched = asked + 60 * S
    base = MachineLife(
        KEY, "aws", asked, launched, launched + 30 * S, asked + int(hours * H), reason
    )
    return replace(base, **more)  # type: ignore[arg-type]


PREEMPTED, LOST = LeaveReason.PREEMPTED, LeaveReason.LOST


def test_rates_have_their_hours_and_interval() -> None:
    lives = [life(0, 10, PREEMPTED), life(20, 30, LOST), life(60, 8, LeaveReason.DONE)]
    (row,) = count(lives, *BY_CLOUD)
    assert row.name == "aws"
    assert (row.preempted, row.lost, row.interrupted) == (1, 1, 2)
    hours = 48 - 3 / 60  # each came a minute after it was asked for
    assert row.machine_us == round(hours * H)
    assert row.hazard is not None
    assert row.hazard.middle == pytest.approx(2 / hours)
    assert row.hazard.low == pytest.approx(0.35536 / hours, rel=1e-4)
    assert row.hazard.high == pytest.approx(6.29579 / hours, rel=1e-4)


def test_what_lies_outside_counts_nowhere() -> None:
    lives = [
        life(-5, 10, PREEMPTED),  # was asked for before, taken away within
        life(95, 10, PREEMPTED),  # asked for within, taken away later
        life(-50, 20, PREEMPTED),  # all before
    ]
    (row,) = count(lives, *BY_CLOUD)
    assert (row.requested, row.interrupted) == (1, 1)
    assert row.machine_us == 5 * H + 5 * H - 60 * S
    (spot,) = count([*lives, life(0, 5, offer_key=KEY.replace("spot", "on_demand"))], *BY_CLOUD)
    assert spot.machine_us == row.machine_us, "another capacity type is another matter"


def test_notices_as_long_as_machines_really_lived() -> None:
    end_h = 10

    def noticed(deadline_s: int | None, heard_s: int, **more: object) -> MachineLife:
        at_us = MONDAY + end_h * H
        deadline_us = None if deadline_s is None else at_us + deadline_s * S
        said = {"notice_us": at_us, "deadline_us": deadline_us, "heard_us": at_us + heard_s * S}
        return life(0, end_h, PREEMPTED, **said, **more)

    whole = noticed(120, 118)
    short = noticed(120, 40)
    done = noticed(120, 40, returned=True)
    untold = noticed(None, 40)
    none = life(0, end_h, LOST)
    assert [item.warning_s() for item in (whole, short, done, untold, none)] == [
        120.0,
        40.0,
        120.0,
        None,
        None,
    ]
    (row,) = count([whole, short, done, untold, none], *BY_CLOUD)
    assert sorted(row.warnings_s) == [40.0, 120.0, 120.0]
    assert (row.cut_short, row.unannounced) == (1, 1)
    assert row.without_notice is not None
    assert (row.without_notice.count, row.without_notice.exposure) == (1, 5)


def test_a_late_notice_is_none_at_all_long() -> None:
    """The deadline was over when we heard: no negative time."""
    at_us = MONDAY + H
    assert life(0, 1, PREEMPTED, notice_us=at_us, deadline_us=at_us - S).warning_s() == 0.0


def test_launches_by_what_became_of_them() -> None:
    def refused(code: str) -> MachineLife:
        return MachineLife(KEY, "aws", MONDAY + H, refused=code)

    lives = [
        refused("CapacityError"),
        refused("CapacityError"),
        refused("QuotaError"),
        life(1, 2),
        life(1, 2),
        life(1, 0.5, LeaveReason.BOOT_TIMEOUT, hello_us=0),
        life(1, 0.1, LeaveReason.CANCELLED, hello_us=0),  # nobody waited for it any more
        MachineLife(KEY, "aws", MONDAY + H),  # no answer yet
    ]
    (row,) = count(lives, *BY_CLOUD)
    assert dict(row.refused) == {"CapacityError": 2, "QuotaError": 1}
    assert (row.requested, row.launched) == (8, 4)
    assert row.refusals is not None
    assert (row.refusals.count, row.refusals.exposure) == (3, 7), "of those that were answered"
    assert row.boot_failures is not None
    assert (row.boot_failures.count, row.boot_failures.exposure) == (1, 3)
    assert row.hellos_s == [90.0, 90.0]


def test_a_refusal_that_was_overtaken_by_a_machine_is_none() -> None:
    (row,) = count([life(1, 2, refused="CapacityError")], *BY_CLOUD)
    assert not row.refused
    assert row.launched == 1


@pytest.mark.req("PRE-12")
def test_two_hundred_events_by_the_hour_as_counted_by_hand() -> None:
    """Random lives over three weeks; hours and losses of each hour of day against a plain count,
    minute by minute."""
    chance = random.Random(7)
    lives = [
        life(chance.randrange(0, 480), chance.randrange(1, 90), chance.choice([PREEMPTED, LOST]))
        for _ in range(200)
    ]
    lives = [replace(item, launched_us=item.requested_us) for item in lives]
    until_us = MONDAY + 600 * H
    minutes, losses = dict.fromkeys(range(24), 0), dict.fromkeys(range(24), 0)
    for item in lives:
        for at_us in range(item.launched_us, item.ended_us, 60 * S):
            minutes[at_us // H % 24] += 1
        losses[item.ended_us // H % 24] += 1
    rows = count(lives, GroupBy.HOUR, "spot", MONDAY, until_us)
    assert [int(row.name) for row in rows] == list(range(24))
    assert {int(row.name): row.machine_us // (60 * S) for row in rows} == minutes
    assert {int(row.name): row.interrupted for row in rows} == losses
    assert sum(losses.values()) == 200
    whole = total(rows)
    assert whole.interrupted == 200
    assert whole.machine_us == sum(item.ended_us - item.launched_us for item in lives)
    assert all(row.hazard and row.hazard.low < row.hazard.middle < row.hazard.high for row in rows)


def test_weekdays_and_hours_are_utc() -> None:
    assert (weekday_of(MONDAY), weekday_of(MONDAY - 1)) == ("monday", "sunday")
    assert (hour_of(MONDAY), hour_of(MONDAY - 1)) == ("00", "23")
    rows = count([life(20, 10, PREEMPTED)], GroupBy.WEEKDAY, "spot", MONDAY, MONDAY + 100 * H)
    assert [(row.name, row.machine_us) for row in rows] == [
        ("monday", 4 * H - 60 * S),
        ("tuesday", 6 * H),
    ]
    assert [row.interrupted for row in rows] == [0, 1]


@pytest.mark.parametrize(
    ("by", "name"),
    [
        (GroupBy.CLOUD, "aws"),
        (GroupBy.REGION, "aws/us-east-1"),
        (GroupBy.ZONE, "aws/us-east-1a"),
        (GroupBy.POOL, KEY),
    ],
)
def test_names(by: GroupBy, name: str) -> None:
    assert [row.name for row in count([life(1, 2)], by, "spot", MONDAY, MONDAY + 9 * H)] == [name]


def test_nothing_is_nothing() -> None:
    assert count([], *BY_CLOUD) == []
    row = total([])
    assert (row.hazard, row.without_notice, row.refusals, row.boot_failures) == (None,) * 4


@pytest.mark.req("MON-02")
@pytest.mark.parametrize(
    ("taken", "word"),
    [
        (0, InterruptionRate.LESS),
        (1, InterruptionRate.OPEN),
        (5, InterruptionRate.OPEN),
        (9, InterruptionRate.MORE),
    ],
)
def test_own_interruptions_beside_what_was_believed(taken: int, word: InterruptionRate) -> None:
    """16 h on AWS, where one each 4 h was believed: 4 are expected."""
    lives = [life(n, 1 + 1 / 60, PREEMPTED if n < taken else LeaveReason.DONE) for n in range(16)]
    (row,) = count(lives, *BY_CLOUD)
    assert row.expected == pytest.approx(4)
    assert row.ratio is not None
    assert row.ratio.middle == pytest.approx(taken / 4)
    assert row.ratio.low <= row.ratio.middle <= row.ratio.high
    assert compare_with_prior(row.ratio) is word
    if taken == 9:  # Garwood: 4.6952 and 15.7052 are the ends of nine
        assert (row.ratio.low, row.ratio.high) == pytest.approx((1.1738, 3.9263), rel=1e-4)


@pytest.mark.req("MON-02")
def test_each_cloud_by_its_own_prior_and_their_sum_by_both() -> None:
    lives = [
        life(0, 8 + 1 / 60),
        life(0, 8 + 1 / 60, cloud="gcp", offer_key=KEY.replace("aws", "gcp")),
        life(0, 8 + 1 / 60, cloud="azure", offer_key=KEY.replace("aws", "azure")),
    ]
    rows = count(lives, *BY_CLOUD)
    assert [(row.name, row.expected) for row in rows] == [
        ("aws", pytest.approx(2)),
        ("azure", pytest.approx(2)),
        ("gcp", pytest.approx(1)),
    ]
    assert total(rows).expected == pytest.approx(5)
    by_day = count(lives, GroupBy.WEEKDAY, *BY_CLOUD[1:])
    assert [row.expected for row in by_day] == [pytest.approx(5)], "hours of several clouds"
    dear = [replace(item, offer_key=item.offer_key.replace("spot", "on_demand")) for item in lives]
    lasting = total(count(dear, GroupBy.CLOUD, "on_demand", *BY_CLOUD[2:]))
    assert lasting.expected == pytest.approx(24 * 419 / (54 * 24 * 2048))


@pytest.mark.req("MON-04")
def test_resumes_that_trained_of_those_that_were_tried() -> None:
    def resumed(
        reason: LeaveReason | None, *, trained: bool = False, at_h: float = 2
    ) -> MachineLife:
        at_us = MONDAY + int(at_h * H)
        return life(1, 3, reason, resumed_us=at_us, trained_us=at_us + S if trained else 0)

    lives = [
        resumed(None, trained=True),
        resumed(PREEMPTED, trained=True),
        resumed(LeaveReason.FAILED),
        replace(resumed(LOST, trained=True), anew=True),
        # Cut short from without, or under way yet: nobody knows whether they would have trained.
        resumed(PREEMPTED),
        resumed(LeaveReason.CANCELLED),
        resumed(None),
        resumed(LOST, at_h=200),  # later than what is asked for
        life(1, 3, LOST),  # there was nothing to go on with
    ]
    (row,) = count(lives, *BY_CLOUD)
    assert (row.resumes, row.trained) == (4, 2)
    assert row.resumed is not None
    assert (row.resumed.middle, row.resumed.low, row.resumed.high) == pytest.approx(
        (0.5, 0.09761, 0.90239), rel=1e-3
    )
    assert count([life(1, 3)], *BY_CLOUD)[0].resumed is None
