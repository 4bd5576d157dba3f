"""What is asked for next: where the job costs least, unless the deadline says otherwise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.base import CapacityType
from providers.dollars import format_usd
from spotd.planner.spot_policy import (
    UNSEEN,
    Action,
    Pool,
    PoolRecord,
    RunningGang,
    Sighting,
    choose,
    recorded,
)
from spotd.planner.spot_policy.cost_estimator import CostEstimator, paid_per_done
from spotd.planner.spot_policy.deadline_slack import must_be_on_demand, spare_looks
from spotd.planner.spot_policy.hazard import found_age_h
from tests.spotd.planner.spot_policy.build import ON_DEMAND, SPOT, H, pool, situation

DOWN_NOW = UNSEEN.after(Sighting(0.0, up=False))
# A cent for the way there: such a pool is reckoned with as one of several are (outlook.py), and
# not by the exact table of one place (test_alone.py).
AWAY: dict[str, Any] = {"egress_usd": 0.01}


@pytest.mark.parametrize(
    ("there", "key"),
    [
        ((pool("a"), pool("b", spot_usd_per_h=0.9)), "b"),
        ((pool("a", spot_usd_per_h=1.5, speed=2.0), pool("b")), "a"),
        ((pool("a", egress_usd=5.0), pool("b", spot_usd_per_h=1.1)), "b"),
        ((pool("a", record=DOWN_NOW), pool("b", spot_usd_per_h=1.1)), "b"),
        ((pool("a", spot_usd_per_h=None), pool("b", spot_usd_per_h=1.1)), "b"),
    ],
    ids=[
        "price",
        "dollars of the work, not of the hour",
        "the way there",
        "refused now",
        "no spot",
    ],
)
def test_spot_where_the_job_costs_least(there: tuple[Pool, ...], key: str) -> None:
    choice = choose(situation(*there))
    assert (choice.action, choice.pool) == (Action.SPOT, key)
    assert [option.score_usd for option in choice.options] == sorted(
        option.here_usd + option.start_usd + option.lost_usd + option.egress_usd + option.rest_usd
        for option in choice.options
    )


def test_on_demand_where_the_job_costs_least_when_the_deadline_leaves_nothing_else() -> None:
    fast = pool("fast", on_demand_usd_per_h=4.0, speed=2.0)
    choice = choose(situation(pool("a"), fast, deadline_s=40 * H))
    assert (choice.action, choice.pool, choice.guarded) == (Action.ON_DEMAND, "fast", True)


def test_without_spot_it_waits_as_long_as_there_is_time() -> None:
    assert choose(situation(pool(record=DOWN_NOW))).action is Action.WAIT
    late = choose(situation(pool(record=DOWN_NOW), deadline_s=40 * H))
    assert (late.action, late.guarded) == (Action.ON_DEMAND, True)


def test_what_runs_on_spot_stays_and_what_runs_on_demand_goes_back_to_it() -> None:
    assert choose(situation(running=RunningGang("a", SPOT, 0.0))).action is Action.STAY
    assert choose(situation(running=RunningGang("a", ON_DEMAND, 0.0))).action is Action.SPOT


def gone_until(hours: float, at_h: float = 0.0) -> PoolRecord:
    """Down for that long, refused just now."""
    looks = [Sighting((at_h - hours) * H + 1800.0 * n, up=False) for n in range(int(2 * hours))]
    return recorded([*looks, Sighting(at_h * H, up=False)])


def up_for(hours: float) -> PoolRecord:
    looks = [Sighting(-hours * H - 1800.0, up=False)]
    looks += [Sighting((n / 2 - hours) * H, up=True) for n in range(int(2 * hours) + 1)]
    return recorded(looks)


def test_spot_that_has_stood_for_a_day_is_worth_more_than_its_price_says() -> None:
    choice = choose(situation(pool("young"), pool("old", spot_usd_per_h=1.02, record=up_for(24))))
    assert (choice.action, choice.pool) == (Action.SPOT, "old")


def test_after_an_end_another_region_is_asked_before_the_neighbour() -> None:
    lost = recorded([Sighting(-H, up=True), Sighting(0.0, up=False)])
    near, far = pool("near"), pool("far", region="far", spot_usd_per_h=1.005)
    assert choose(situation(near, far)).pool == "near"
    assert choose(situation(pool("lost", record=lost), near, far)).pool == "far"


def test_on_demand_is_bought_before_the_guard_says_so_where_waiting_costs_more() -> None:
    """Nothing came back in a day, and the time that is left is better kept for what comes later."""
    long_gone = pool(record=gone_until(24))
    tight = choose(situation(long_gone, deadline_s=42 * H))
    assert (tight.action, tight.guarded) == (Action.ON_DEMAND, False)
    assert "less than waiting for spot" in tight.why
    just_gone = choose(situation(pool(record=DOWN_NOW), deadline_s=90 * H))
    assert (just_gone.action, just_gone.guarded) == (Action.WAIT, False)


def test_back_to_spot_only_as_long_as_the_rest_is_worth_a_start() -> None:
    runs = RunningGang("a", ON_DEMAND, 0.0)
    assert choose(situation(running=runs, left_s=20 * H)).action is Action.SPOT
    little = situation(running=runs, left_s=300.0, restart_s=H)
    assert choose(little).action is Action.STAY


def test_it_moves_where_the_rest_costs_less_and_not_for_a_few_cents() -> None:
    runs = RunningGang("a", SPOT, -6 * H)
    here = pool("a", record=up_for(6))
    there = pool("b", spot_usd_per_h=0.5, record=up_for(6))
    moves = choose(situation(here, there, running=runs))
    assert (moves.action, moves.pool) == (Action.SPOT, "b")
    near = pool("b", spot_usd_per_h=0.995, record=up_for(6))
    assert choose(situation(here, near, running=runs)).action is Action.STAY
    far = pool("b", spot_usd_per_h=0.9, egress_usd=50.0, record=up_for(6))
    assert choose(situation(here, far, running=runs)).action is Action.STAY


@pytest.mark.parametrize("sold_as", [SPOT, ON_DEMAND])
def test_what_is_about_to_train_is_not_left_for_a_better_place(sold_as: CapacityType) -> None:
    there = pool("b", spot_usd_per_h=0.5, record=up_for(6))
    for starting_s, action in ((300.0, Action.STAY), (0.0, Action.SPOT)):
        runs = RunningGang("a", sold_as, 0.0, starting_s)
        assert choose(situation(pool("a"), there, running=runs)).action is action


@pytest.mark.parametrize("elsewhere", [None, 1.5])
def test_on_demand_is_left_for_a_wait_alone_where_a_wait_would_be_chosen_without_it(
    elsewhere: float | None,
) -> None:
    """Or on-demand would be bought again at once: here, or where it costs less."""
    for hours in (41.5, 42.0, 43.0, 44.0, 46.0, 50.0, 60.0, 90.0):
        for gone_h in (0.0, 0.5, 2.0, 6.0, 24.0):
            record = gone_until(gone_h) if gone_h else DOWN_NOW
            there = [pool("a", record=record, on_demand_usd_per_h=6.0 if elsewhere else 3.0)]
            there += [pool("b", record=record, on_demand_usd_per_h=elsewhere)] if elsewhere else []
            told: dict[str, Any] = {"deadline_s": hours * H}
            kept = choose(situation(*there, running=RunningGang("a", ON_DEMAND, -H), **told))
            idle = choose(situation(*there, **told))
            assert kept.action is Action.STAY or idle.action is Action.WAIT


@pytest.mark.parametrize(("hours", "action"), [(50, Action.STAY), (60, Action.WAIT)])
def test_on_demand_is_given_back_where_the_same_table_says_that_a_wait_costs_less(
    hours: int, action: Action
) -> None:
    """With 40 h of work and spot gone for two. What it costs to wait for the pools one by one is
    less than to stay, at 50 h as well; but that is another reckoning than that of what stays."""
    told = situation(
        pool(record=gone_until(2.0), **AWAY),
        running=RunningGang("a", ON_DEMAND, -H),
        deadline_s=hours * H,
    )
    assert told.running is not None
    assert CostEstimator(told).wait().score_usd < CostEstimator(told).lasts(told.running).score_usd
    assert choose(told).action is action


@pytest.mark.parametrize(("stop_s", "action"), [(60.0, Action.WAIT), (200 * H, Action.STAY)])
def test_on_demand_that_takes_long_to_stop_is_not_given_back_without_the_time_for_it(
    stop_s: float, action: Action
) -> None:
    runs = RunningGang("a", ON_DEMAND, -H)
    told = {"running": runs, "deadline_s": 200 * H, "stop_s": stop_s}
    assert choose(situation(pool(record=DOWN_NOW), **told)).action is action


def test_it_does_not_move_to_where_it_was_refused_of_late() -> None:
    runs, here = RunningGang("a", SPOT, -6 * H), pool("a", record=up_for(6))
    for ago_h, action in ((0.5, Action.STAY), (1.0, Action.SPOT), (2.0, Action.SPOT)):
        refused = recorded([Sighting(-ago_h * H, up=False)])
        there = pool("b", region="far", spot_usd_per_h=0.5, record=refused)
        assert choose(situation(here, there, running=runs)).action is action


def just_back() -> Pool:
    back = recorded([Sighting(-600.0, up=False), Sighting(0.0, up=True)])
    return pool(record=back, **AWAY)


def test_spot_that_has_just_come_back_is_watched_before_it_is_taken() -> None:
    told: dict[str, Any] = {"deadline_s": 44 * H, "restart_s": 2400.0, "left_s": 30 * H}
    watched = choose(situation(just_back(), signalled=True, **told))
    assert watched.action is not Action.SPOT
    blind = choose(situation(just_back(), **told))
    assert blind.action is Action.SPOT, "nobody can watch it"


def test_where_looking_costs_a_probe_it_is_asked_for_first() -> None:
    before = recorded([Sighting(-600.0, up=False)])
    told: dict[str, Any] = {"deadline_s": 44 * H, "restart_s": 2400.0, "left_s": 30 * H}
    choice = choose(situation(pool(record=before, **AWAY), probe_s=60.0, **told))
    assert choice.probes == ("a",)
    assert choice.action in {Action.WAIT, Action.STAY}
    again = choose(situation(just_back(), probe_s=60.0, **told))
    assert again.probes == ()


def test_what_is_lost_with_each_end_is_told() -> None:
    for lost_s, least in ((0.0, 0.0), (1800.0, 0.1)):
        choice = choose(situation(lost_s=lost_s))
        (option,) = [one for one in choice.options if one.action is Action.SPOT]
        assert option.lost_usd >= least
        assert (option.lost_usd > 0) == (lost_s > 0)


def test_without_a_date_what_ends_often_costs_more_than_it_says() -> None:
    flaky = recorded(Sighting(600.0 * n - 60 * H, up=n % 2 == 0) for n in range(359))
    cheap, steady = pool("flaky", spot_usd_per_h=0.8, record=flaky), pool("steady")
    choice = choose(situation(cheap, steady, deadline_s=None))
    assert (choice.action, choice.pool) == (Action.SPOT, "steady")
    assert choose(situation(pool("cheap", spot_usd_per_h=0.8), steady, deadline_s=None)).pool == (
        "cheap"
    )


@pytest.mark.parametrize("deadline_s", [60 * H, None])
@pytest.mark.parametrize(("spot", "on_demand"), [(0.0, 3.0), (1.0, 0.0)])
def test_machines_that_cost_nothing_are_reckoned_with(
    spot: float, on_demand: float, deadline_s: float | None
) -> None:
    """As one's own."""
    there = pool(spot_usd_per_h=spot, on_demand_usd_per_h=on_demand)
    choice = choose(situation(there, deadline_s=deadline_s))
    cheaper = Action.ON_DEMAND if deadline_s and on_demand < spot else Action.SPOT
    assert choice.action is cheaper
    assert all(math.isfinite(option.score_usd) for option in choice.options)


def test_spot_that_costs_no_less_than_on_demand_is_not_waited_for() -> None:
    dear = pool(spot_usd_per_h=3.0, record=DOWN_NOW)
    choice = choose(situation(dear, deadline_s=400 * H))
    assert (choice.action, choice.guarded) == (Action.ON_DEMAND, False)
    runs = RunningGang("a", ON_DEMAND, 0.0)
    assert choose(situation(dear, running=runs, deadline_s=400 * H)).action is Action.STAY


def test_spot_of_which_nobody_says_the_price_goes_on() -> None:
    runs = RunningGang("a", SPOT, 0.0)
    here, there = pool("a", spot_usd_per_h=None), pool("b", spot_usd_per_h=0.1)
    assert choose(situation(here, there, running=runs)).action is Action.STAY


@given(st.floats(0.05, 200), st.floats(1.02, 6), st.floats(0, 1), st.floats(0, 3), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_guard_has_the_last_word(
    left_h: float, times: float, restart_h: float, lost_h: float, spot: bool
) -> None:
    """Whatever else would be cheaper, nothing but on-demand where not a look is to spare."""
    told = situation(
        running=RunningGang("a", SPOT, 0.0) if spot else None,
        left_s=left_h * H,
        deadline_s=left_h * times * H,
        restart_s=restart_h * H,
        lost_s=lost_h * H,
        unsaved_s=lost_h * H if spot else 0.0,
    )
    choice = choose(told)
    assert choice.guarded == must_be_on_demand(told)
    assert not choice.guarded or choice.action is Action.ON_DEMAND
    assert all(math.isfinite(option.score_usd) for option in choice.options)


def test_no_pool_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"^a situation needs one pool at least$"):
        choose(situation().__class__(0.0, situation().work, ()))


BEFORE = recorded([Sighting(-600.0, up=False)])
UP6, DEAR = up_for(6), pool(spot_usd_per_h=3.0, record=DOWN_NOW)
RUNS, HELD = RunningGang("a", SPOT, -6 * H), RunningGang("a", ON_DEMAND, -H)
YOUNG: dict[str, Any] = {"deadline_s": 44 * H, "restart_s": 2400.0, "left_s": 30 * H}
# The situation; what is done; where; for what reason; and what was weighed, the best first.
SAID: dict[str, tuple[Any, Action, str, str, list[str]]] = {
    "too late, on demand": (
        situation(deadline_s=39 * H, running=HELD),
        Action.STAY,
        "",
        "the deadline allows nothing else",
        [],
    ),
    "too late": (
        situation(deadline_s=39 * H),
        Action.ON_DEMAND,
        "a",
        "the deadline allows nothing else",
        [],
    ),
    "no spot, and something runs": (
        situation(pool(spot_usd_per_h=None), running=HELD),
        Action.STAY,
        "",
        "no spot is available",
        [],
    ),
    "no spot": (
        situation(pool(spot_usd_per_h=None)),
        Action.WAIT,
        "",
        "no spot is available, and there is time",
        [],
    ),
    "spot, and no date": (
        situation(deadline_s=None, running=RUNS),
        Action.STAY,
        "",
        "the job stays on spot as long as it is available",
        [],
    ),
    "on demand, and no date": (
        situation(pool("a"), pool("b", spot_usd_per_h=0.9), deadline_s=None, running=HELD),
        Action.SPOT,
        "b",
        "the cheapest",
        ["spot b", "spot a"],
    ),
    "about to train": (
        situation(running=RunningGang("a", ON_DEMAND, 0.0, 0.5)),
        Action.STAY,
        "",
        "a machine that is about to train is not left to save money",
        [],
    ),
    "of no price": (
        situation(pool("a", spot_usd_per_h=None), pool("b"), running=RUNS),
        Action.STAY,
        "",
        "the job stays on spot as long as it is available",
        [],
    ),
    "cheaper elsewhere": (
        situation(pool("a", record=UP6), pool("b", spot_usd_per_h=0.5, record=UP6), running=RUNS),
        Action.SPOT,
        "b",
        "the rest costs ${} less there",
        ["spot b", "stay a"],
    ),
    "no cheaper elsewhere": (
        situation(pool("a", record=UP6), pool("b", record=UP6), running=RUNS),
        Action.STAY,
        "",
        "no available offer costs less than staying",
        ["stay a", "spot b"],
    ),
    "dear spot": (
        situation(DEAR, deadline_s=400 * H),
        Action.ON_DEMAND,
        "a",
        "on-demand costs no more than spot",
        ["wait ", "on_demand a"],
    ),
    "dear spot, and on demand": (
        situation(DEAR, deadline_s=400 * H, running=HELD),
        Action.STAY,
        "",
        "on-demand costs no more than spot",
        ["stay a"],
    ),
    "spot": (
        situation(),
        Action.SPOT,
        "a",
        "${} less than without spot",
        ["spot a", "wait ", "on_demand a"],
    ),
    "young spot that can be probed": (
        situation(pool(record=BEFORE, **AWAY), probe_s=60.0, **YOUNG),
        Action.WAIT,
        "",
        "it may have just returned, and may end again",
        ["spot a", "wait ", "on_demand a"],
    ),
    "the same, and on demand": (
        situation(pool(record=BEFORE, **AWAY), probe_s=60.0, running=HELD, **YOUNG),
        Action.STAY,
        "",
        "it may have just returned, and may end again",
        ["spot a", "stay a"],
    ),
    "young spot that is watched": (
        situation(just_back(), signalled=True, running=HELD, **YOUNG),
        Action.STAY,
        "",
        "spot is observed until it has been available for a while",
        ["spot a", "stay a"],
    ),
    "old spot that is watched": (
        situation(pool(record=up_for(24)), signalled=True),
        Action.SPOT,
        "a",
        "${} less than without spot",
        ["spot a", "wait ", "on_demand a"],
    ),
    "a pause": (
        situation(pool(record=gone_until(2.0), **AWAY), running=HELD),
        Action.WAIT,
        "",
        "spot is expected back soon, and there is time",
        ["stay a"],
    ),
    "no pause": (
        situation(pool(record=gone_until(2.0), **AWAY), running=HELD, deadline_s=50 * H),
        Action.STAY,
        "",
        "no spot is worth it",
        ["stay a"],
    ),
    "on demand in time": (
        situation(pool(record=gone_until(24)), deadline_s=42 * H),
        Action.ON_DEMAND,
        "a",
        "${} less than waiting for spot",
        ["on_demand a", "wait "],
    ),
    "a wait": (
        situation(pool(record=DOWN_NOW), deadline_s=90 * H),
        Action.WAIT,
        "",
        "${} less than on-demand now, and there is time",
        ["wait ", "on_demand a"],
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_chosen_what_was_weighed_and_what_is_said(name: str) -> None:
    told, action, place, why, weighed = SAID[name]
    choice = choose(told)
    assert (choice.action, choice.pool) == (action, place)
    assert choice.guarded is (why == "the deadline allows nothing else")
    assert choice.late_s == (0 if not choice.guarded else H if told.running else H + 720)
    assert [f"{one.action.value} {one.pool}" for one in choice.options] == weighed
    gain = choice.options[1].score_usd - choice.options[0].score_usd if "{}" in why else 0.0
    assert choice.why == why.format(format_usd(gain).removeprefix("$"))


def test_what_is_watched_is_reckoned_as_the_best_start_of_later() -> None:
    """Of two that have just come back: dollars against on-demand now."""
    both = just_back(), replace(just_back(), key="b", spot_usd_per_h=1.1)
    told = situation(*both, signalled=True, **YOUNG)
    choice, outlook = choose(told), CostEstimator(told)
    assert choice.action is Action.WAIT
    later = [
        outlook.ripen(key, found_age_h(just_back().record, 0.0), outlook.wait()) for key in "ab"
    ]
    gain = outlook.on_demand().score_usd - min(later)
    assert min(later) != max(later)
    assert choice.why == f"{format_usd(gain)} less than on-demand now, and there is time"


def test_a_place_that_refused_of_late_does_not_hide_the_next_best() -> None:
    refused = recorded([Sighting(-0.5 * H, up=False)])
    best = pool("b", region="far", spot_usd_per_h=0.3, record=refused)
    next_best = pool("c", region="away", spot_usd_per_h=0.5, record=UP6)
    choice = choose(situation(pool("a", record=UP6), best, next_best, running=RUNS))
    assert [one.pool for one in choice.options] == ["b", "c", "a"]
    assert (choice.action, choice.pool) == (Action.SPOT, "c")


def test_a_move_has_to_gain_an_hour_of_spot() -> None:
    """Of machines at about $10."""
    for least, action in ((8.0, Action.STAY), (12.0, Action.SPOT)):
        low, high, gain = 6.0, 10.0, 0.0
        for _ in range(40):
            usd = (low + high) / 2
            here, there = (
                pool(key, spot_usd_per_h=each, on_demand_usd_per_h=30.0, record=UP6)
                for key, each in (("a", 10.0), ("b", usd))
            )
            choice = choose(situation(here, there, running=RUNS))
            score = {one.pool: one.score_usd for one in choice.options}
            gain = score["a"] - score["b"]
            low, high = (usd, high) if gain > least else (low, usd)
        assert gain == pytest.approx(least, abs=0.01)
        assert choice.action is action


@pytest.mark.parametrize(("stop_s", "action"), [(115 * 600.0, Action.WAIT), (69_001, Action.STAY)])
def test_a_pause_leaves_two_looks_and_the_time_to_stop(stop_s: float, action: Action) -> None:
    told = situation(pool(record=gone_until(2.0), **AWAY), running=HELD, stop_s=stop_s)
    assert spare_looks(told) == 117
    assert choose(told).action is action


@pytest.mark.parametrize(
    ("lost_s", "record", "ends", "gone_h"),
    [
        (0.0, UNSEEN, 1.0, 0.2),
        (H, UNSEEN, 1.0, 0.7),
        (0.0, PoolRecord(ends=1.0, expected_ends=0.1), 1.5, 0.2),
    ],
    ids=["a start", "and half of what lies between two saves", "what ends often"],
)
def test_what_a_place_costs_without_a_date(
    lost_s: float, record: PoolRecord, ends: float, gone_h: float
) -> None:
    there = pool(spot_usd_per_h=2.0, speed=2.0, egress_usd=5.0, record=record)
    [option] = choose(situation(there, deadline_s=None, lost_s=lost_s)).options
    assert (option.here_usd, option.start_usd, option.egress_usd) == pytest.approx((40, 0.4, 5))
    assert option.lost_usd == pytest.approx(40 * (paid_per_done(ends, gone_h) - 1))


def test_a_start_that_never_comes_to_an_end_counts_ten_times_the_work() -> None:
    [option] = choose(situation(pool(), deadline_s=None, restart_s=30 * H)).options
    assert option.lost_usd == 10 * option.here_usd


def test_without_a_date_what_costs_nothing_costs_nothing() -> None:
    [option] = choose(situation(pool(spot_usd_per_h=0.0), deadline_s=None)).options
    assert option.score_usd == 0
