"""One place alone is where only one sells spot, and it says when: spot, on-demand, or neither."""

from __future__ import annotations

from typing import Any

import pytest

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
from spotd.planner.spot_policy.cost_estimator import YOUNG_H
from spotd.planner.spot_policy.deadline_slack import spare_looks
from spotd.planner.spot_policy.hazard import fleet_scale
from spotd.planner.spot_policy.pool_record import UNKNOWN_AGE_H
from spotd.planner.spot_policy.single_pool import SinglePool, only_place
from spotd.planner.spot_policy.single_pool_mdp import exact
from tests.spotd.planner.spot_policy.build import ON_DEMAND, SPOT, H, pool, situation

DOWN_NOW = UNSEEN.after(Sighting(0.0, up=False))
HELD = RunningGang("a", ON_DEMAND, -H)


def gone_for(hours: float) -> PoolRecord:
    return recorded(
        [*(Sighting(-n * H / 2, up=False) for n in range(int(2 * hours), 0, -1)), _now(False)]
    )


def _now(up: bool) -> Sighting:
    return Sighting(0.0, up=up)


def back_since(minutes: float) -> PoolRecord:
    return recorded([Sighting(-600.0 - minutes * 60, up=False), Sighting(-minutes * 60, up=True)])


@pytest.mark.parametrize(
    ("there", "key"),
    [
        ((pool("a"),), "a"),
        ((pool("a"), pool("b", spot_usd_per_h=None)), "a"),
        ((pool("a"), pool("b")), None),
        ((pool("a", spot_usd_per_h=None),), None),
        ((pool("a"), pool("b", spot_usd_per_h=None, on_demand_usd_per_h=2.0)), None),
        ((pool("a", on_demand_usd_per_h=None), pool("b", spot_usd_per_h=None)), None),
        ((pool("a", egress_usd=1.0),), None),
        ((pool("a", transfer_s=60.0),), None),
        ((pool("a", spot_usd_per_h=2.8),), None),
        ((pool("a", spot_usd_per_h=0.0),), None),
        ((pool("a", on_demand_usd_per_h=0.0),), None),
    ],
    ids=[
        "alone",
        "on-demand elsewhere that is no cheaper",
        "two",
        "no spot",
        "cheaper on-demand elsewhere",
        "no on-demand",
        "egress",
        "a way there",
        "dear spot",
        "free spot",
        "free on-demand",
    ],
)
def test_one_place_is_where_spot_and_on_demand_are_bought(
    there: tuple[Pool, ...], key: str | None
) -> None:
    found = only_place(situation(*there))
    assert (found and found.key) == key


def chosen(record: PoolRecord = UNSEEN, running: RunningGang | None = None, **told: Any) -> Any:
    """`late_s` 0: as on the traces."""
    return choose(situation(pool(record=record), running=running, **{"late_s": 0.0, **told}))


LONG: dict[str, Any] = {"restart_s": 5400.0, "left_s": 28 * H, "deadline_s": 44 * H}
YOUNG = {**LONG, "signalled": True}


# The choice, and what is weighed, the best first.
@pytest.mark.parametrize(
    ("choice", "action", "weighed", "why"),
    [
        (chosen(), Action.SPOT, ["spot a", "wait ", "on_demand a"], "less than without spot"),
        (chosen(running=RunningGang("a", SPOT, 0.0)), Action.STAY, ["stay a"], "stays on spot"),
        (
            chosen(gone_for(1.0), deadline_s=90 * H),
            Action.WAIT,
            ["wait ", "on_demand a"],
            "less than on-demand now",
        ),
        (
            chosen(gone_for(24.0), deadline_s=42 * H),
            Action.ON_DEMAND,
            ["on_demand a", "wait "],
            "less than waiting for spot",
        ),
        (
            chosen(gone_for(1.0), HELD, deadline_s=90 * H),
            Action.WAIT,
            ["wait ", "stay a"],
            "spot is expected back soon",
        ),
        (
            chosen(gone_for(24.0), HELD, deadline_s=42 * H),
            Action.STAY,
            ["stay a", "wait "],
            "no spot is worth it",
        ),
        (
            chosen(back_since(600.0), HELD),
            Action.SPOT,
            ["spot a", "stay a", "wait "],
            "less than without spot",
        ),
    ],
    ids=["spot", "runs", "waits", "on demand", "gives back", "keeps", "goes back"],
)
def test_what_is_chosen_and_what_it_is_weighed_with(
    choice: Any, action: Action, weighed: list[str], why: str
) -> None:
    assert choice.action is action
    assert choice.pool == ("a" if action in {Action.SPOT, Action.ON_DEMAND} else "")
    assert [f"{one.action.value} {one.pool}" for one in choice.options] == weighed
    assert why in choice.why
    scores = [one.score_usd for one in choice.options]
    assert scores == sorted(scores)


def test_young_spot_is_passed_by_where_it_can_be_watched_and_taken_where_nobody_can() -> None:
    """With 90 min a start it is gone before it trains too often."""
    tight = {**LONG, "deadline_s": 32 * H, "left_s": 30 * H}
    watched = chosen(UNSEEN.after(Sighting(-600.0, up=False)).after(_now(True)), **YOUNG)
    assert watched.action is not Action.SPOT
    assert [one.action for one in watched.options].index(Action.SPOT) > 0
    assert not watched.probes
    old = chosen(back_since(600.0).after(_now(True)), **YOUNG)
    assert old.action is Action.SPOT
    blind = chosen(UNSEEN.after(Sighting(-600.0, up=False)), **LONG)
    assert blind.action is Action.SPOT
    assert chosen(UNSEEN.after(Sighting(-600.0, up=False)), **tight).action is not Action.SPOT


def test_where_a_look_costs_a_probe_young_spot_is_probed_first() -> None:
    unseen = UNSEEN.after(Sighting(-600.0, up=False))
    for running, action in ((None, Action.WAIT), (HELD, Action.STAY)):
        choice = choose(situation(pool(record=unseen), running=running, probe_s=60.0, **LONG))
        assert (choice.action, choice.probes) == (action, ("a",))
        seen = choose(
            situation(pool(record=unseen.after(_now(True))), running=running, probe_s=60.0, **LONG)
        )
        assert not seen.probes


@pytest.mark.parametrize(("stop_s", "action"), [(115 * 600.0, Action.WAIT), (69_001, Action.STAY)])
def test_a_pause_leaves_two_looks_and_the_time_to_stop(stop_s: float, action: Action) -> None:
    told = situation(
        pool(record=gone_for(1.0)), running=HELD, stop_s=stop_s, left_s=30 * H, deadline_s=50 * H
    )
    assert spare_looks(told) == 117
    assert choose(told).action is action


def test_on_demand_that_is_given_back_is_not_bought_again_at_once() -> None:
    for hours in (41.5, 42.0, 43.0, 44.0, 46.0, 50.0, 60.0, 90.0):
        for gone_h in (0.0, 0.5, 2.0, 6.0, 24.0):
            record = gone_for(gone_h) if gone_h else DOWN_NOW
            kept = chosen(record, HELD, deadline_s=hours * H)
            idle = chosen(record, deadline_s=hours * H)
            assert kept.action is Action.STAY or idle.action is Action.WAIT


def test_dollars_are_of_the_machine_and_hours_of_its_speed() -> None:
    one = SinglePool(*_told(pool()))
    dear = SinglePool(*_told(pool(spot_usd_per_h=10.0, on_demand_usd_per_h=30.0)))
    fast = SinglePool(*_told(pool(speed=2.0), left_s=80 * H))
    assert dear.spot().score_usd == pytest.approx(10 * one.spot().score_usd)
    assert fast.spot().score_usd == pytest.approx(one.spot().score_usd)
    assert fast.on_demand(None, there=True).start_usd == pytest.approx(3 * 720 / 3600)


@pytest.mark.parametrize("running", [None, HELD], ids=["asked for", "goes on"])
def test_on_demand_is_worth_more_where_spot_that_stands_can_be_gone_back_to(
    running: RunningGang | None,
) -> None:
    stands = SinglePool(*_told(pool(record=back_since(600.0).after(_now(True)))))
    known = stands.on_demand(running, there=True).score_usd
    assert known < stands.on_demand(running, there=False).score_usd - 1
    assert stands.wait(there=True).score_usd < stands.wait(there=False).score_usd - 1


def test_what_ends_will_lose_is_a_part_of_the_whole() -> None:
    safe, loses = (SinglePool(*_told(pool(), lost_s=lost_s)) for lost_s in (0.0, 1800.0))
    assert safe.spot().lost_usd == safe.stay().lost_usd == 0
    more = loses.spot().score_usd - safe.spot().score_usd
    assert more > 0.1
    assert loses.spot().lost_usd == pytest.approx(more, rel=0.6)
    assert loses.spot().start_usd == pytest.approx(0.2)
    assert loses.spot().rest_usd > 0


def test_like_situations_share_a_table_and_its_own_history_is_heard_once() -> None:
    one, other = SinglePool(*_told(pool())), SinglePool(*_told(pool(), left_s=39.9 * H))
    assert one.table is other.table
    # Ends thirty times as often as the law says: at most four events are heard, beside twenty.
    flaky = PoolRecord(ends=120.0, expected_ends=4.0)
    assert SinglePool(*_told(pool(record=flaky))).table is one.table
    steady = PoolRecord(ends=0.0, expected_ends=40.0)
    assert SinglePool(*_told(pool(record=steady))).table is not one.table
    assert exact.cache_info().maxsize == 8


def _told(there: Pool, **changes: Any) -> tuple[Any, Pool]:
    return situation(there, **changes), there


def test_spot_as_dear_as_it_may_be_is_not_waited_for_in_one_place() -> None:
    assert only_place(situation(pool(spot_usd_per_h=9.0, on_demand_usd_per_h=10.0))) is None
    found = only_place(situation(pool(spot_usd_per_h=8.99, on_demand_usd_per_h=10.0)))
    assert found is not None


def test_hours_are_hours() -> None:
    one = SinglePool(*_told(pool(record=gone_for(6.0)), now_s=10 * H, deadline_s=70 * H))
    assert (one.time_h, one.work_h, one.restart_h) == pytest.approx((60.0, 40.0, 0.2))


@pytest.mark.parametrize(
    ("record", "gone_h"),
    [
        (gone_for(6.0), 6.0),
        (DOWN_NOW, UNKNOWN_AGE_H),
        (back_since(600.0), YOUNG_H),
        (UNSEEN, YOUNG_H),
    ],
    ids=["for hours", "now", "there", "unseen"],
)
def test_what_is_not_there_is_gone_for_as_long_as_it_was_seen_to_be(
    record: PoolRecord, gone_h: float
) -> None:
    assert SinglePool(*_told(pool(record=record))).gone_h == pytest.approx(gone_h, abs=0.31)


def test_each_price_is_of_the_age_of_what_it_speaks_of() -> None:
    """Spot that stands for long is there for longer, and what is gone for long comes back later."""
    young, old = (SinglePool(*_told(pool(record=back_since(minutes)))) for minutes in (1.0, 900.0))
    assert old.table is young.table
    assert old.wait(there=True).score_usd < young.wait(there=True).score_usd
    assert old.wait(there=False).score_usd == young.wait(there=False).score_usd
    for running in (None, HELD):
        then, now = (one.on_demand(running, there=True).score_usd for one in (old, young))
        assert then < now
    just, long = (SinglePool(*_told(pool(record=gone_for(hours)))) for hours in (0.5, 5.0))
    assert just.wait(there=False).score_usd < long.wait(there=False).score_usd
    assert just.spot().score_usd == long.spot().score_usd


def test_what_goes_on_is_said_to_and_pays_no_start() -> None:
    one = SinglePool(*_told(pool(), lost_s=1800.0))
    spot, on_demand = one.stay(), one.on_demand(HELD, there=True)
    assert (spot.action, on_demand.action) == (Action.STAY, Action.STAY)
    assert (spot.start_usd, on_demand.start_usd) == (0.0, 0.0)
    assert spot.lost_usd == one.spot().lost_usd > 0
    assert on_demand.lost_usd == one.on_demand(None, there=True).lost_usd == 0


def test_parts_are_in_dollars_and_no_more_than_the_whole() -> None:
    cheap, dear = (
        SinglePool(*_told(pool(spot_usd_per_h=usd, on_demand_usd_per_h=3 * usd), lost_s=1800.0))
        for usd in (1.0, 10.0)
    )
    assert dear.spot().start_usd == pytest.approx(10 * cheap.spot().start_usd) == 2.0
    assert dear.spot().lost_usd == pytest.approx(10 * cheap.spot().lost_usd)
    # It ends as often as can be told, and each end loses 12 hours: on-demand is what it comes to.
    there = pool(record=PoolRecord(ends=1e4, expected_ends=4.0), on_demand_usd_per_h=1.2)
    lost = SinglePool(*_told(there, lost_s=12 * H, deadline_s=90 * H)).spot()
    assert (lost.start_usd, lost.rest_usd) == (pytest.approx(0.2), 0.0)
    assert lost.start_usd + lost.lost_usd == pytest.approx(lost.score_usd)


def test_a_table_is_of_a_place_that_is_near_this_one() -> None:
    for lost_s in (600.0, 1300.0, 2200.0, 3000.0, 5000.0):
        place = SinglePool(*_told(pool(), lost_s=lost_s)).table.place
        assert place.loss_h / (lost_s / 3600) == pytest.approx(1.0, abs=0.13)
    for ends, due in ((9.0, 40.0), (30.0, 8.0), (3.0, 1.0), (12.0, 40.0), (25.0, 20.0)):
        record = PoolRecord(ends=ends, expected_ends=due, returns=due, expected_returns=ends)
        place, true = SinglePool(*_told(pool(record=record))).table.place, fleet_scale([record])
        assert 1 / 1.23 < place.ends / true.ends < 1.23
        assert 1 / 1.23 < place.returns / true.returns < 1.23
    for usd, ratio in ((3.0, 3.0), (4.1, 4.0), (7.2, 7.25), (1e4, 100.0)):
        assert SinglePool(*_told(pool(on_demand_usd_per_h=usd))).table.place.on_demand == ratio
    steps = [
        SinglePool(*_told(pool(), left_s=2 * H, look_s=look_s)).table.place.step_h
        for look_s in (60.0, 600.0, 3600.0)
    ]
    assert steps[0] < 1 / 6
    assert steps[1:] == [1 / 6, 1 / 6]
