"""In which order offers are asked for: by what the job costs there, or how long it takes."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any

import pytest

from providers.base import CapacityType, Offer
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, Desired, JobSpec
from spotd.domain.market import Market
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.preferences import Objective, Preferences, Speed
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.placement.cost_to_finish import CostToFinish, costs, lives_of, worths
from spotd.planner.placement.rank import rank
from spotd.planner.rules.spot_policy_rule import compared, of_spec
from tests.spotd.planner.build import NOW, market, node, offer, settle, spec, view

ON_DEMAND = CapacityType.ON_DEMAND
SPOT = offer("aws-1a", 10.0)
FULL = offer("aws-1a", 40.0, capacity_type=ON_DEMAND)
SLOW = offer("aws-1b", 8.0, accelerator="A100")
KINDS = tuple(
    replace(spec().resources.alternatives[0], accelerator=name) for name in ("H100", "A100")
)


def a_job(objective: Objective = Objective.COST, slow: float = 1.0, **fields: Any) -> JobSpec:
    preferences = Preferences(objective, speeds=(Speed("H100", 8, 1.0), Speed("A100", 8, slow)))
    return spec(**({"preferences": preferences, "alternatives": KINDS} | fields))


def first(of: JobSpec, *offers: Offer, **fields: Any) -> Offer:
    """The one that is asked for."""
    after, _ = settle(view(job={"spec": of}), market(offers, **fields))
    return after.nodes[0].offer


def cost(of: JobSpec, market_: Market) -> dict[str, CostToFinish]:
    found = costs(view(job={"spec": of}), market_, NOW, rank(of, market_, NOW))
    return {one.row.offer.key: one for one in found}


def worth(of: JobSpec, market_: Market) -> dict[str, float]:
    return dict(worths(view(job={"spec": of}), market_, NOW, rank(of, market_, NOW)))


@pytest.mark.req("PLC-05")
def test_a_cheaper_machine_wins_unless_it_takes_too_long() -> None:
    assert first(a_job(slow=0.9), SPOT, SLOW) == SLOW
    assert first(a_job(slow=0.5), SPOT, SLOW) == SPOT  # $8 for half of what $10 do


@pytest.mark.req("PLC-06")
def test_the_objective_chooses() -> None:
    fast = offer("gcp-1a", 60.0, accelerator="A100", capacity_type=ON_DEMAND)
    sold = (SPOT, FULL, fast)
    assert first(a_job(), *sold) == SPOT
    assert first(a_job(Objective.SPEED), *sold) == FULL  # nobody takes it away, at equal speed
    assert first(a_job(Objective.SPEED, slow=2.0), *sold) == fast
    assert first(a_job(Objective.SPEED, slow=2.0, max_hourly_microusd=50_000_000), *sold) == FULL


def test_of_equal_hours_the_cheaper_one_is_asked_for() -> None:
    dear = replace(FULL, zone="aws-1b", price_microusd_per_h=41_000_000)
    assert first(a_job(Objective.SPEED), dear, FULL) == FULL


def test_without_saves_a_deadline_is_kept_where_nobody_takes_the_machine_away() -> None:
    """A pool that sells only spot is not a place for it, and was not a reason to fail."""
    unsaved = CheckpointSpec(store="", engine="none")
    preferences = Preferences(work_s=36_000.0)
    job = a_job(checkpoint=unsaved, deadline_us=NOW + 200 * 3600 * S, preferences=preferences)
    elsewhere = offer("gcp-1a", 9.0)
    found = worth(job, market([FULL, SPOT, elsewhere]))
    assert found[elsewhere.key] == float("inf")
    assert found[FULL.key] < float("inf")
    assert set(cost(job, market([FULL, SPOT, elsewhere]))) == {FULL.key, SPOT.key}
    assert first(job, FULL, SPOT, elsewhere) == FULL


@pytest.mark.req("DAT-01")
def test_the_way_of_the_checkpoint_is_part_of_the_cost() -> None:
    """$78 of egress, and as likely as not the way back, are more than a day at $4 less an hour."""
    save = CheckpointSpec("s3://b", "spotd", size_bytes=872_000_000_000, every_steps=9, every_s=0)
    of = a_job(checkpoint=save)
    around = {
        "places": {"s3://b": ("aws", "aws-1")},
        "egress_microusd_per_gb": {"aws": 90_000, "gcp": 0},
    }
    near = offer("aws-1a", 12.0)
    assert first(of, near, offer("gcp-1a", 9.0), **around) == near
    assert first(of, near, offer("gcp-1a", 8.0), **around) == near
    far = offer("gcp-1a", 5.0)
    assert first(of, near, far, **around) == far


def test_an_order_that_the_file_names_comes_first() -> None:
    assert first(a_job(slow=2.0, ordered=True), SPOT, SLOW) == SPOT


def test_each_interruption_costs_a_start_and_half_a_pause() -> None:
    """Of spot every four hours, before this fleet knows better: a start of ten minutes, and half of
    the five between two saves."""
    of = a_job(preferences=Preferences(work_s=36_000.0))
    by_key = cost(of, market((SPOT, FULL, SLOW)))
    spot, full = by_key[SPOT.key], by_key[FULL.key]
    assert spot.train_usd == 100.0
    assert spot.start_usd == pytest.approx(10 / 6)
    assert spot.lost_usd == pytest.approx(10 * 2.5 * 750 / 3600)
    assert spot.egress_usd == 0.0
    assert spot.total_usd == pytest.approx(100 + 10 / 6 + 10 * 2.5 * 750 / 3600)
    assert spot.hours == pytest.approx(10 + 1 / 6 + 2.5 * 750 / 3600)
    assert 0 < full.lost_usd < 1.0
    gang = cost(changed(of, num_nodes=2), market((SPOT, FULL)))[SPOT.key]
    assert gang.train_usd == 200.0
    assert gang.lost_usd == pytest.approx(20 * 5 * 750 / 3600)


@pytest.mark.req("PLC-13")
def test_a_pool_where_machines_are_taken_away_costs_more_than_it_says() -> None:
    calm = replace(SPOT, region="aws-2", zone="aws-2a", price_microusd_per_h=11_000_000)
    assert first(a_job(), SPOT, calm) == SPOT
    taken = tuple(
        NodeLifetime(
            node_id=f"x-g{n}-0",
            offer_key=SPOT.key,
            asked_at_us=NOW,
            refused="",
            began_at_us=NOW,
            until_us=NOW + 900 * S,
            left=LeaveReason.PREEMPTED,
        )
        for n in range(20)
    )
    assert first(a_job(), SPOT, calm, history=FleetHistory(taken)) == calm
    (life,) = lives_of(FleetHistory(taken))
    assert (life.offer_key, life.time_us, life.losses) == (SPOT.key, 20 * 900 * S, 20)


def test_what_never_began_is_no_life_and_it_is_reckoned_once() -> None:
    past = FleetHistory(
        (
            NodeLifetime("x-g1-0", SPOT.key, NOW, "CapacityError"),
            NodeLifetime("y-g1-0", "k", NOW, "", NOW),
        )
    )
    assert lives_of(past) == ()
    assert lives_of(past) is lives_of(past)


def test_the_way_there_is_paid_and_the_way_back_as_likely_as_it_is_needed() -> None:
    size = {"size_bytes": 1_000_000_000_000, "every_steps": 9, "every_s": 0.0}
    save = CheckpointSpec("s3://b", "spotd", **size)
    of = a_job(checkpoint=save, preferences=Preferences(work_s=14_400.0))
    around = {
        "places": {"s3://b": ("aws", "aws-1")},
        "egress_microusd_per_gb": {"aws": 90_000, "gcp": 0},
    }
    far = offer("gcp-1a", 8.0)
    sold = market((SPOT, far), **around)
    ends = 14_400 / (8 * 3600)
    assert cost(of, sold)[far.key].egress_usd == pytest.approx(90 * (2 - exp(-ends)))
    assert cost(of, sold)[SPOT.key].egress_usd == 0.0
    here = node(NodeState.RUNNING, offer=far)
    found = costs(view(here, job={"spec": of}), sold, NOW, rank(of, sold, NOW), here)
    stays = next(one for one in found if one.row.offer == far)
    ends -= 40 / (8 * 3600)  # that it has trained for by now
    assert (stays.start_usd, stays.egress_usd) == (0.0, pytest.approx(90 * (1 - exp(-ends))))


def test_half_the_speed_is_twice_the_time() -> None:
    of = a_job(preferences=Preferences(work_s=36_000.0, speeds=(Speed("A100", 8, 0.5),)))
    slow = cost(of, market((SPOT, SLOW)))[SLOW.key]
    assert slow.train_usd == 160.0
    assert slow.hours > 20


def test_where_there_is_nothing_to_choose_nothing_is_reckoned() -> None:
    assert worth(a_job(), market((SPOT,))) == {}
    assert worth(a_job(), market((SPOT, FULL), disabled={"aws": "off"})) == {}
    assert set(worth(a_job(), market((SPOT, FULL, SLOW)))) == {SPOT.key, FULL.key, SLOW.key}
    assert cost(a_job(preferences=Preferences(work_steps=9)), market((SPOT, FULL))) == {}


def test_speed_is_worth_its_hours_and_cost_its_dollars() -> None:
    sold = market((SPOT, FULL))
    one = cost(a_job(), sold)[SPOT.key]
    assert worth(a_job(), sold)[SPOT.key] == one.total_usd
    assert worth(a_job(Objective.SPEED), sold)[SPOT.key] == one.hours


def test_the_places_are_told_in_their_order_with_what_the_policy_says() -> None:
    of = a_job(preferences=Preferences(work_s=36_000.0))
    found = compared(of_spec(of, NOW), market((FULL, SPOT)), NOW)
    assert [row.offer for row in found.rows] == [SPOT, FULL]
    assert [one.row.offer for one in found.costs] == [SPOT, FULL]
    assert found.intent is not None
    assert found.intent.ask is not None
    assert found.intent.ask.offer == SPOT
    assert compared(of_spec(a_job(), NOW), market((FULL, SPOT)), NOW).intent is None
    new = of_spec(of, NOW).job
    assert (new.id, new.name, new.created_at_us, new.desired) == ("", of.name, NOW, Desired.RUN)


@pytest.mark.req("CST-20")
def test_no_plan_is_without_a_restart() -> None:
    """Of a fleet without any interruption yet: a start, and what is expected to be lost, are in
    the price of spot and, smaller, of machines that stay."""
    found = cost(a_job(), market((SPOT, FULL)))
    spot, full = found[SPOT.key], found[FULL.key]
    for one in (spot, full):
        assert min(one.start_usd, one.lost_usd) > 0
        assert one.total_usd > one.train_usd
    assert spot.lost_usd / spot.train_usd > 10 * full.lost_usd / full.train_usd


def test_the_same_work_in_the_same_places_is_reckoned_once_and_other_work_anew() -> None:
    sold = market((SPOT, FULL))
    plain = a_job()
    rows = rank(plain, sold, NOW)
    told = worths(view(job={"spec": plain}), sold, NOW, rows)
    assert worths(view(job={"spec": plain, "name": "other"}), sold, NOW, rows) is told
    alone = worths(view(job={"spec": plain}), sold, NOW, list(rows))
    assert alone == told
    assert alone is not told, "a list of its own"
    long = replace(plain, preferences=replace(plain.preferences, work_s=9 * 86_400.0))
    assert worths(view(job={"spec": long}), sold, NOW, rank(long, sold, NOW)) != told
    lost = NodeLifetime(
        "x-g1-0", SPOT.key, NOW, "", NOW, until_us=NOW + 900 * S, left=LeaveReason.LOST
    )
    again = changed(sold, history=FleetHistory((lost,)))
    assert worths(view(job={"spec": plain}), again, NOW, rank(plain, again, NOW)) != told
