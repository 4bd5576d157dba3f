"""The hour of the day counts where a pool's own days have shown that it does, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from spotd.decide.policy import UNKNOWN, Action, Daily, Hours, Sighting, choose, learned, recorded
from spotd.decide.policy.hours import (
    ALIKE,
    DAYS,
    HOURS,
    MARGIN,
    backwards,
    counted,
    foretold,
)
from spotd.decide.policy.outlook import Outlook
from tests.spotd.decide.policy.build import H, pool, situation

HALF_H = 1800.0
BAD = range(12, 18)


def seen(days: int, up: Callable[[float], bool]) -> list[Sighting]:
    """Each half hour, from 0 on; `up` is asked with hours."""
    return [Sighting(n * HALF_H, up(n / 2)) for n in range(days * 48)]


def cycle(at_h: float) -> bool:
    """There but for the afternoon, in which it comes and goes each half hour."""
    return int(at_h) % HOURS not in BAD or at_h % 1 == 0


def flat(at_h: float) -> bool:
    """Gone for half an hour every five hours: each day at others."""
    return bool(at_h % 5)


def hours(days: int, up: Callable[[float], bool] = cycle) -> Hours:
    return learned(seen(days, up))[1]


def test_a_strong_day_is_learned() -> None:
    ends = hours(14).ends
    assert ends.used
    assert min(ends.factors[hour] for hour in (13, 14, 15, 16)) > 1.3
    assert max(ends.factors[hour] for hour in (0, 3, 6, 9, 21)) < 1


def test_the_record_is_the_same_with_hours_and_without() -> None:
    sightings = seen(3, cycle)
    assert learned(sightings)[0] == recorded(sightings)


def test_where_all_hours_are_alike_none_is_used() -> None:
    told = hours(28, flat)
    assert told == UNKNOWN
    assert told.ends.over(13.5, 2.0) == told.returns.over(13.5, 2.0) == 1.0


def test_a_few_days_are_not_enough_however_clear_they_are() -> None:
    few = foretold(counted(seen(DAYS, cycle))[1])  # the first day is foretold by none
    assert few.nats > MARGIN
    assert not few.used
    assert hours(DAYS) == UNKNOWN
    assert few.over(13.0, 1.0) == 1.0
    assert hours(DAYS + 1).ends.used


def test_bad_hours_that_are_others_each_day_are_not_used() -> None:
    """Each day is as uneven as in the cycle, and no hour is worse than another."""

    def moves(at_h: float) -> bool:
        return cycle(at_h + 7 * (at_h // 24))

    assert not hours(28, moves).ends.used


def test_a_day_that_was_foretold_wrongly_speaks_against_it() -> None:
    def turned(at_h: float) -> bool:
        return cycle(at_h if at_h < 8 * 24 else at_h + 8)

    assert hours(8, turned).ends.nats > hours(9, turned).ends.nats


def test_what_is_foretold_is_never_of_the_day_itself() -> None:
    """One day foretells nothing, and nothing is gained by what is learned on the last."""
    _, ends, _ = counted(seen(2, cycle))
    first = {day: told for day, told in ends.items() if day == 0}
    assert (foretold(first).days, foretold(first).nats) == (0, 0.0)
    _, other, _ = counted(seen(1, flat))
    before = foretold({0: ends[0], 1: other[0]})
    assert before.nats < 0


def test_the_mean_over_some_hours() -> None:
    daily = Daily((2.0, 1.0, *[0.5] * 22), DAYS, MARGIN)
    assert daily.over(0.5, 1.0) == pytest.approx(1.5)
    assert daily.over(23.0, 2.0) == pytest.approx(1.25)  # over midnight
    assert daily.over(480_000.25, 0.5) == pytest.approx(2.0)
    assert daily.over(7.0, 24.0) == pytest.approx((2 + 1 + 11) / 24)
    assert daily.over(1.0, 0.0) == 1.0
    assert daily.over(23.9999999999999, 1.0) == pytest.approx(2.0)
    assert replace(daily, nats=MARGIN - 0.1).over(0.5, 1.0) == 1.0


def chosen(at_hour: float, told: Hours) -> str:
    """Of two pools the one that costs less, and whose hours are known, or the other."""
    up = recorded([Sighting((at_hour - n / 2) * H, True) for n in range(4, -1, -1)])
    known = pool("a", record=up, hours=told)
    other = pool("b", spot_usd_per_h=1.005, record=up)
    choice = choose(situation(known, other, now_s=at_hour * H, deadline_s=(at_hour + 60) * H))
    assert choice.action is Action.SPOT
    return choice.pool


def test_spot_that_is_about_to_go_is_left_to_others() -> None:
    known = hours(14)
    midday, evening = 14 * 24 + 12.0, 14 * 24 + 19.0
    assert chosen(midday, known) == "b"
    assert chosen(evening, known) == "a"
    assert chosen(midday, UNKNOWN) == chosen(midday, hours(28, flat)) == "a"
    assert chosen(midday, hours(DAYS)) == "a"


def scores(at_hours: Iterable[float], told: Hours) -> list[float]:
    """What waiting costs, while nothing is there."""
    found = []
    for at_hour in at_hours:
        down = recorded([Sighting((at_hour - n / 2) * H, False) for n in range(4, -1, -1)])
        one = situation(
            pool(record=down, hours=told), now_s=at_hour * H, deadline_s=(at_hour + 60) * H
        )
        found.append(Outlook(one).wait().score_usd)
    return found


def test_a_wait_costs_less_when_spot_is_about_to_come_back() -> None:
    soon = Daily(tuple(3.0 if 6 <= hour < 10 else 0.7 for hour in range(HOURS)), DAYS, MARGIN)
    morning, noon = scores((6.0, 12.0), Hours(returns=soon))
    assert morning < noon
    unknown = scores((6.0, 12.0), Hours(returns=replace(soon, days=0)))
    assert unknown[0] == pytest.approx(unknown[1])
    assert morning < unknown[0] < noon


def test_hours_are_counted_back_from_the_end_to_three_of_them() -> None:
    """Up to 30 o'clock, that is 6: the hour before it is 5 o'clock's."""
    daily = Daily(tuple(4.0 if hour == 5 else 1.0 for hour in range(HOURS)), DAYS, MARGIN)
    found = backwards([(1.0, daily)], 30.0)
    assert found[0] == pytest.approx(4.0, rel=0.05)
    assert found[1:] == (1.0,) * 23
    assert backwards([(1.0, daily)], 31.4) == found
    assert backwards([(1.0, daily)], 31.6) != found
    mixed = backwards([(1.0, daily), (2.0, Daily())], 30.0)
    assert mixed[0] == pytest.approx(2.0, rel=0.05)
    assert backwards([(1.0, replace(daily, days=0)), (2.0, Daily())], 30.0) == (1.0,)
    assert backwards([], 30.0) == (1.0,)


def test_jobs_share_a_table_though_their_hours_are_known() -> None:
    known = hours(14)

    def table_of(deadline_h: float) -> object:
        one = situation(pool(hours=known), now_s=336 * H, deadline_s=(336 + deadline_h) * H)
        return Outlook(one).table

    assert table_of(60.0) is table_of(61.0)
    assert table_of(60.0) is not table_of(66.0)
    soon = pool(hours=Hours(returns=known.ends))
    habits = Outlook(situation(soon, now_s=336 * H, deadline_s=396 * H)).table.habits
    assert habits.ends_by_hour == (1.0,)
    assert habits.returns_by_hour == backwards([(1.0, known.ends)], 396.0)
    # Of more than twice the time of the work nothing is told: the hours are those from now on.
    slack = Outlook(situation(pool(hours=known), now_s=336 * H, deadline_s=(336 + 500) * H))
    assert slack.time_h == 192 * slack.step_h


def test_spot_in_its_bad_hours_is_given_up_for_on_demand_where_that_is_hardly_dearer() -> None:
    def does(at_hour: float, told: Hours) -> Action:
        down = recorded([Sighting((at_hour - n / 4) * H, False) for n in range(4, -1, -1)])
        one = pool(record=down, hours=told, on_demand_usd_per_h=1.6)
        return choose(situation(one, now_s=at_hour * H, deadline_s=(at_hour + 52) * H)).action

    rare = Daily(tuple(0.1 if 6 <= hour < 18 else 2.0 for hour in range(HOURS)), DAYS, MARGIN)
    known = Hours(returns=rare)
    actions = {hour: (does(hour, known), does(hour, UNKNOWN)) for hour in (6.0, 18.0)}
    assert actions[6.0][0] is not actions[18.0][0]
    assert actions[6.0][1] is actions[18.0][1]


def test_a_pool_that_nobody_saw_has_no_hours() -> None:
    assert learned([]) == (recorded([]), UNKNOWN)
    assert UNKNOWN.ends.factors == ALIKE
