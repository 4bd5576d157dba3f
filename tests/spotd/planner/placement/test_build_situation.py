"""A job and the market as the policy is told of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from providers.base import CapacityType, Scope
from providers.catalogs.egress import first_tier_prices
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec, JobSpec
from spotd.domain.market import Market, Refusal
from spotd.domain.node import Node
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.on_node_loss import Elastic, OnNodeLoss
from spotd.domain.preferences import GenerationSaves, Objective, Preferences, Speed
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.placement.build_situation import JobSituation, situate, speed_of
from spotd.planner.placement.rank import RankedOffer, rank, steered
from spotd.planner.spot_policy import UNSEEN, RunningGang
from tests.spotd.planner.build import NOW, head, market, node, notice, offer, spec, view

ON_DEMAND, RESERVED = CapacityType.ON_DEMAND, CapacityType.RESERVED
SPOT = offer("aws-1a", 10.0)
FULL = offer("aws-1a", 40.0, capacity_type=ON_DEMAND)
OURS = offer("aws-1a", 1.0, capacity_type=RESERVED)
FAR = offer("gcp-1a", 12.0)
POOL = "aws/aws-1/aws-1a/8xh100"
STORE = CheckpointSpec("s3://bucket", "spotd", every_s=300.0, size_bytes=872_000_000_000)


def a_job(**fields: Any) -> JobSpec:
    wants = (replace(spec().resources.alternatives[0], capacity_types=tuple(CapacityType)),)
    base = {"preferences": Preferences(work_s=36_000.0), "checkpoint": STORE, "alternatives": wants}
    return spec(**(base | fields))


def told(of: JobSpec, market_: Market, here: Node | None = None, **fields: Any) -> JobSituation:
    nodes = (here,) if here else ()
    before: View = view(*nodes, **({"job": {"spec": of}} | fields))
    rows: list[RankedOffer] = rank(of, market_, NOW, job_id=before.job.id)
    found = situate(before, market_, NOW, rows, here)
    assert found is not None
    return found


def test_one_pool_is_all_that_is_sold_in_a_place() -> None:
    found = told(a_job(num_nodes=2), market((SPOT, FULL, OURS)))
    by_key = {pool.key: pool for pool in found.situation.pools}
    assert set(by_key) == {POOL, f"{POOL}/reserved"}
    pool = by_key[POOL]
    assert (pool.spot_usd_per_h, pool.on_demand_usd_per_h) == (20.0, 80.0)  # of both machines
    assert pool.region == "aws/aws-1"
    reserved = by_key[f"{POOL}/reserved"]
    assert (reserved.spot_usd_per_h, reserved.on_demand_usd_per_h) == (None, 2.0)
    assert found.spot[POOL].offer == SPOT
    assert found.lasting[POOL].offer == FULL
    assert found.hopeful


def refused(code: str) -> Market:
    said = (Refusal(SPOT.key, Scope.OFFER, code, NOW - S, "j0-g1-x"),)
    return market((SPOT, FULL), refusals=said)


def test_what_is_barred_has_no_price_but_where_the_gang_is() -> None:
    sold = refused("QuotaError")
    (pool,) = told(a_job(), sold).situation.pools
    assert (pool.spot_usd_per_h, pool.on_demand_usd_per_h) == (None, 40.0)
    assert pool.record == UNSEEN
    assert told(a_job(), sold).hopeful  # it is out for a while alone
    here = node(NodeState.RUNNING, offer=SPOT)
    (pool,) = told(a_job(), sold, here).situation.pools
    assert pool.spot_usd_per_h == 10.0


@pytest.mark.parametrize("code", ["CapacityError", "Preempted", "Lost"])
def test_where_there_was_no_room_just_now_spot_is_down_and_may_come_back(code: str) -> None:
    found = told(a_job(), refused(code))
    (pool,) = found.situation.pools
    assert pool.spot_usd_per_h == 10.0
    assert (pool.record.up, pool.record.seen_s) == (False, NOW / S)
    assert found.spot == {}, "nobody asks there now"
    assert found.hopeful
    full = told(a_job(), market((FULL,)))
    assert not full.hopeful


def test_a_machine_that_is_being_taken_away_says_that_its_pool_is_down() -> None:
    """The past that was read knows it as up; there is no other place, and yet there is hope."""
    stay = NodeLifetime("j0-g1-0", SPOT.key, NOW - 9 * S, "", NOW - 9 * S, until_us=NOW)
    sold = market((SPOT, FULL), history=FleetHistory((stay,)))
    going = node(NodeState.DRAINING, offer=SPOT, notices=(notice(),))
    before = view(going, job={"spec": a_job()})
    rows = rank(a_job(), sold, NOW, {SPOT.key}, job_id=before.job.id)
    found = situate(before, sold, NOW, rows, None)
    assert found is not None
    (pool,) = found.situation.pools
    assert (pool.spot_usd_per_h, pool.record.up, pool.record.since_s) == (10.0, False, NOW / S)
    assert found.hopeful
    coming = node(NodeState.LAUNCHING, offer=SPOT)
    asked = situate(view(coming, job={"spec": a_job()}), sold, NOW, rows, None)
    assert asked is not None
    assert asked.situation.pools[0].spot_usd_per_h is None, "already asked for is not down"
    before_it = node(NodeState.GONE, offer=SPOT, notices=(notice(),))
    again = situate(view(before_it, job={"spec": a_job()}), sold, NOW, rows, None)
    assert again is not None
    assert again.situation.pools[0].spot_usd_per_h is None, "nor for what was taken away before"


def test_the_place_of_the_gang_is_told_though_it_is_sold_no_more() -> None:
    here = node(NodeState.RUNNING, offer=FAR)
    pools = told(a_job(), market((SPOT,)), here).situation.pools
    gone = next(pool for pool in pools if pool.region == "gcp/gcp-1")
    assert (gone.spot_usd_per_h, gone.on_demand_usd_per_h) == (None, None)


def test_spot_that_is_too_dear_for_ever_is_no_hope() -> None:
    assert not told(a_job(max_hourly_microusd=9_000_000), market((SPOT, OURS))).hopeful


def test_nothing_is_told_of_nothing() -> None:
    assert situate(view(job={"spec": a_job()}), market(()), NOW, (), None) is None
    unknown = a_job(preferences=Preferences(work_steps=100))
    rows = rank(unknown, market(), NOW)
    assert situate(view(job={"spec": unknown}), market(), NOW, rows, None) is None


def test_the_work_is_what_is_left_saved_and_at_risk() -> None:
    starts = tuple(
        NodeLifetime(f"j0-g{n}-0", SPOT.key, NOW, "", NOW, trained_at_us=NOW + 90 * S)
        for n in range(9)
    )
    sold = market((SPOT, FULL), history=FleetHistory(starts))
    here = node(NodeState.RUNNING, offer=SPOT)
    of = a_job(deadline_us=NOW + 7200 * S)
    saved = (GenerationSaves(1, 0, 100, NOW - 1200 * S, NOW - 200 * S, 5),)
    job = {"spec": of, "head": head(step=100, seen_at_us=NOW - 20 * S)}
    work = told(of, sold, here, job=job, saved=saved).situation.work
    assert work.left_s == 36_000 - 1000 - 20  # and it is counted once
    assert work.deadline_s == NOW / S + 7200
    assert work.restart_s == 90.0
    assert work.unsaved_s == 20.0
    assert work.lost_s == 300.0
    assert work.granted_s == sold.timing.granted_s == 900.0
    idle = told(a_job(), sold).situation.work
    assert (idle.unsaved_s, idle.lost_s, idle.deadline_s) == (0.0, 300.0, None)


def test_what_is_unsaved_for_longer_than_a_pause_counts_as_not_done() -> None:
    here = node(NodeState.RUNNING, offer=SPOT, first_step_at_us=NOW - 5000 * S)
    job = {"spec": a_job()}
    work = told(a_job(), market((SPOT,)), here, job=job).situation.work
    idle = told(a_job(), market((SPOT,)), job=job).situation.work
    assert (work.lost_s, work.unsaved_s) == (300.0, 5000.0)
    assert work.left_s == idle.left_s - 300.0


def test_the_gang_that_trains_and_the_one_that_comes() -> None:
    trains = node(NodeState.RUNNING, offer=SPOT)
    found = told(a_job(), market((SPOT, FULL)), trains).situation.running
    assert found == RunningGang(POOL, CapacityType.SPOT, trains.machine.launched_at_us / S, 0.0)
    comes = node(NodeState.LAUNCHING, offer=OURS)
    found = told(a_job(), market((OURS,)), comes).situation.running
    asked_s = comes.requested_at_us / S
    assert found is not None
    assert found == RunningGang(f"{POOL}/reserved", ON_DEMAND, asked_s, 600 - (NOW / S - asked_s))
    late = replace(comes, requested_at_us=NOW - 9000 * S)
    found = told(a_job(), market((OURS,)), late).situation.running
    assert found is not None
    assert found.starting_s == 0.0


@pytest.mark.req("DAT-01")
@pytest.mark.parametrize(
    ("store", "cloud", "usd", "seconds"),
    [
        (("aws", "aws-1"), "aws-1a", 0.0, 0.0),
        (("aws", ""), "aws-1a", 0.0, 0.0),
        (("aws", "aws-2"), "aws-1a", 0.0, 697.6),  # no price between regions is known
        (("aws", "aws-1"), "gcp-1a", 78.48, 697.6),
        (("gcp", "gcp-1"), "aws-1a", 104.64, 697.6),
        (("here", ""), "aws-1a", 0.0, 0.0),
        (("", ""), "aws-1a", 0.0, 697.6),
    ],
)
def test_the_checkpoint_comes_from_where_its_store_is(
    store: tuple[str, str], cloud: str, usd: float, seconds: float
) -> None:
    """872 GB: $0.09 a GB from one cloud, $0.12 from the other, and 10 Gb/s on the way."""
    leaving = {"aws": 90_000, "gcp": 120_000}
    sold = market(
        (offer(cloud, 10.0),), places={"s3://bucket": store}, egress_microusd_per_gb=leaving
    )
    (pool,) = told(a_job(), sold).situation.pools
    assert (pool.egress_usd, pool.transfer_s) == pytest.approx((usd, seconds))


@pytest.mark.req("DAT-05")
@pytest.mark.parametrize(("cloud", "usd"), [("aws", 78.48), ("runpod", 0.0), ("lyceum", 0.0)])
def test_out_of_a_cloud_without_egress_a_checkpoint_goes_anywhere_for_nothing(
    cloud: str, usd: float
) -> None:
    """By the dated list that comes with us. It takes its time all the same."""
    sold = market(
        (FAR,), places={"s3://bucket": (cloud, "x")}, egress_microusd_per_gb=first_tier_prices()
    )
    (pool,) = told(a_job(), sold).situation.pools
    assert (pool.egress_usd, pool.transfer_s) == pytest.approx((usd, 697.6))


def test_a_checkpoint_that_was_made_says_how_large_it_is() -> None:
    sold = market(
        (FAR,), places={"s3://bucket": ("aws", "aws-1")}, egress_microusd_per_gb={"aws": 100_000}
    )
    made = (GenerationSaves(1, 1, 2, 1, 2, 10_000_000_000), GenerationSaves(2, 3, 4, 3, 4, 5))
    (pool,) = told(a_job(), sold, saved=made).situation.pools
    assert pool.egress_usd == pytest.approx(1.0)
    near = replace(FAR, local=True)
    (pool,) = told(a_job(), replace(sold, offers=(near,)), saved=made).situation.pools
    assert pool.egress_usd == 0.0


def test_what_a_pool_was_seen_as_comes_with_it() -> None:
    out = NodeLifetime("x-g1-0", SPOT.key, NOW - 60 * S, "CapacityError")
    first, second = told(a_job(), market((SPOT, FAR), history=FleetHistory((out,)))).situation.pools
    assert (first.record.up, second.record.up) == (False, None)


def test_speeds_are_those_of_the_accelerator_and_its_number() -> None:
    speeds = (Speed("H100", 8, 1.0), Speed("a100", 8, 0.4))
    of = a_job(preferences=Preferences(work_s=9.0, speeds=speeds))
    slow = replace(SPOT, accelerator="A100")
    assert speed_of(of, slow) == 0.4
    assert speed_of(of, replace(slow, accelerator_count=16)) == 0.4
    assert speed_of(of, replace(slow, accelerator_count=4)) == 1.0  # nobody knows
    assert speed_of(of, replace(slow, accelerator="L4")) == 1.0
    assert speed_of(of, SPOT) == 1.0
    assert speed_of(of, None) == 1.0
    want = tuple(
        replace(spec().resources.alternatives[0], accelerator=name) for name in ("H100", "A100")
    )
    both = changed(of, alternatives=want)
    first, second = told(both, market((SPOT, replace(FAR, accelerator="A100")))).situation.pools
    assert (first.speed, second.speed) == (1.0, 0.4)


def test_steps_that_were_measured_on_a_slow_machine_are_fewer_hours_on_a_fast_one() -> None:
    of = a_job(preferences=Preferences(work_s=36_000.0, speeds=(Speed("A100", 8, 0.5),)))
    here = node(NodeState.RUNNING, offer=replace(SPOT, accelerator="A100"))
    saved = (GenerationSaves(1, 0, 100, NOW - 1000 * S, NOW, 5),)
    job = {"spec": of, "head": head(step=100)}
    work = told(of, market((SPOT,)), here, job=job, saved=saved).situation.work
    assert work.left_s == 36_000 - 500 - 1


def test_without_an_amount_a_day_is_compared_and_no_deadline() -> None:
    of = spec(deadline_us=NOW + 60 * S)
    work = told(of, market((SPOT, FULL))).situation.work
    assert (work.left_s, work.deadline_s) == (86_400.0, None)


def test_who_is_not_steered() -> None:
    assert steered(a_job())
    shrinking = a_job(num_nodes=2, elastic=Elastic(OnNodeLoss.SHRINK))
    assert not steered(shrinking)
    assert not steered(a_job(preferences=Preferences(objective=Objective.SPEED, work_s=9.0)))
