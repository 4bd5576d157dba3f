"""Every invariant has somebody who judges it."""

from __future__ import annotations

import inspect
import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

import tests.sim.oracles
from providers.base import CapacityType, LaunchRequest
from spotd.alert_sinks.base import Alert
from spotd.domain.events import Event, Severity
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec
from spotd.domain.states import LeaveReason, NodeState
from spotd.store.events import EventRow
from spotd.store.instances import ABSENT_S
from tests.sim.cloud import TYPE, Rented
from tests.sim.faults import Faults
from tests.sim.kernel import Kernel
from tests.sim.oracles import ORACLES, Oracles, ViolationError
from tests.sim.oracles.bucket import BucketOracle
from tests.sim.oracles.money import MoneyOracle
from tests.sim.oracles.record import CREATES_AN_HOUR, RecordOracle
from tests.sim.oracles.waste import LEAK_S
from tests.sim.planted_bugs import BUGS
from tests.sim.tiers import memory
from tests.sim.users import ANYWHERE
from tests.sim.world import BUCKET, SimWorld
from tests.spotd.store.build import new_node
from trainer.agent.base.stop_timing import StopTiming
from trainer.agent.main.deadman import SLACK_SHARE

# Of facts about reliability, but T1, which is a test of whole runs, and C2, which is a rule of the
# training engine (see `tests.sim.oracles`).
NAMED = frozenset(
    (
        "L1",
        "L1c",
        "L2",
        "L3",
        "S1",
        "S2",
        "S3",
        "F1",
        "F2",
        "C1",
        "D1",
        "D2",
        "G1",
        "B1",
        "B2",
        "B3",
    )
    + ("R1", "P1", "P2", "P3", "A1", "X1", "Q1", "K1")
)


@pytest.fixture
def world() -> SimWorld:
    kernel = Kernel()
    world = SimWorld(kernel, Faults(1, {}))
    with memory() as open_store:
        world.store = open_store(lambda: kernel.now_us, world.notify)
    return world


@pytest.fixture
def oracles(world: SimWorld) -> Oracles:
    return Oracles(world)


def test_every_invariant_is_named_and_told_of() -> None:
    assert ORACLES.keys() == NAMED
    page = tests.sim.oracles.__doc__ or ""
    told = set(re.findall(r"\b([A-Z]\d[a-z]?)\b", page))
    assert told == NAMED | {"T1", "C2"}


@pytest.mark.parametrize("invariant", sorted(NAMED))
def test_every_invariant_has_its_oracle(oracles: Oracles, invariant: str) -> None:
    for name in ORACLES[invariant]:
        source = inspect.getsource(inspect.getmodule(getattr(oracles, name)) or tests.sim.oracles)
        assert f'"{invariant}"' in source, f"{name} does not judge {invariant}"


# Those that no planted bug has to be found as, and why.
UNPROVEN: dict[str, str] = {}


@pytest.mark.parametrize("invariant", sorted(NAMED))
def test_every_invariant_has_a_planted_bug_that_is_found_as_it_and_as_no_other(
    invariant: str,
) -> None:
    """`make sim` fails when one of them is not found, within its seeds, as what it is seen as."""
    found = [bug.name for bug in BUGS if bug.seen_as == {invariant}]
    assert bool(found) is (invariant not in UNPROVEN), UNPROVEN.get(invariant, "none is")
    assert len({bug.name for bug in BUGS}) == len(BUGS)


# --- P3: a loop is told from a storm


@pytest.fixture
def job_id(world: SimWorld) -> str:
    """A job that asks for two machines side by side."""
    bucket = BucketOracle(world)
    RecordOracle(world, bucket, MoneyOracle(world))
    checkpoint = CheckpointSpec(store=BUCKET, engine="spotd")
    return world.submit("job", 9, alternatives=(ANYWHERE,), checkpoint=checkpoint, candidates=2)


def _created(world: SimWorld, job_id: str, number: int) -> Rented:
    cloud = world.clouds["gcp"]
    [zone, *_] = cloud.zones.values()
    request = LaunchRequest(
        token=f"token-{number}",
        name=f"node-{number}",
        region=zone.region,
        zone=zone.name,
        instance_type=TYPE,
        capacity_type=CapacityType.ON_DEMAND,
        tags={"spotd-job": job_id},
        ssh_user="ubuntu",
        ssh_public_key="",
        host_private_key="",
        host_public_key="",
    )
    return cloud.rented[cloud.launch(request).instance_id]


def test_in_place_of_what_is_taken_away_a_job_may_have_others(world: SimWorld, job_id: str) -> None:
    """As seed 1 of `slow` had it once: every machine was warned, and none came to train."""
    for number in range(2 * CREATES_AN_HOUR):
        world.clouds["gcp"].preempt(_created(world, job_id, number))


def test_what_is_ended_by_us_and_asked_for_again_is_a_loop(world: SimWorld, job_id: str) -> None:
    world.clouds["gcp"].preempt(_created(world, job_id, 0))
    for number in range(1, CREATES_AN_HOUR + 2):
        world.clouds["gcp"].end(_created(world, job_id, number), "terminated")
    with pytest.raises(ViolationError, match=r"P3 .* was given 23 machines in an hour, and 1 were"):
        _created(world, job_id, CREATES_AN_HOUR + 2)


# --- D1: a machine that no listing shows


@pytest.mark.parametrize(("at_s", "proof"), [((0, 70), False), ((0, 30, 61), True)])
def test_two_listings_are_no_proof_of_the_time_between(
    world: SimWorld, job_id: str, at_s: tuple[int, ...], proof: bool
) -> None:
    cloud = world.clouds["gcp"]
    machine = _created(world, job_id, 0)
    began_us = machine.hidden_until_us = world.kernel.now_us
    for seconds in at_s:
        world.kernel.run(began_us + seconds * 1_000_000)
        machine.hidden_until_us = world.kernel.now_us + 1
        cloud.list()
    assert (machine.missed_for_us >= ABSENT_S * 1e6) is proof


# --- G1: a crowd


@pytest.mark.parametrize(
    ("crowd", "word_s", "found"), [(2, -1, False), (3, -1, True), (3, 0, False)]
)
def test_more_at_once_than_the_breaker_allows_are_no_orphans(
    world: SimWorld,
    oracles: Oracles,
    monkeypatch: pytest.MonkeyPatch,
    crowd: int,
    word_s: int,
    found: bool,
) -> None:
    """Of a fleet of four whose rows all say that they are gone: for as long before as a person has
    not said that what nobody wants may go."""
    store = CheckpointSpec(store=BUCKET, engine="spotd")
    job_id = world.submit("job", 9, alternatives=(ANYWHERE,), checkpoint=store)
    gone_at_us = world.kernel.now_us
    world.released_us = gone_at_us + word_s * 1_000_000
    node = changed(new_node(job_id), state=NodeState.GONE, gone_at_us=gone_at_us)
    monkeypatch.setattr(world, "node_of", lambda _token: node)
    machines = [_created(world, job_id, number) for number in range(4)]
    cloud = world.clouds["gcp"]
    cloud.terminate(machines[3].id)
    world.kernel.run(world.kernel.now_us + 60 * 1_000_000)  # the next sweep is another one
    with pytest.raises(ViolationError, match=r"G1 .* 3 of") if found else nullcontext():
        for machine in machines[:crowd]:
            cloud.terminate(machine.id)


# --- what the judges once took for mistakes (each found by a seed of `test_regressions.py`)


@pytest.mark.parametrize("fault", ["credentials", "cloud_reply_lost"])
def test_what_a_cloud_that_says_nothing_may_have_is_a_reason_to_be_out_of_money(
    world: SimWorld, fault: str
) -> None:
    bucket = BucketOracle(world)
    record = RecordOracle(world, bucket, MoneyOracle(world))
    checkpoint = CheckpointSpec(store=BUCKET, engine="spotd")
    spend = {"checkpoint": checkpoint, "max_cost_microusd": 1_000_000}
    job_id = world.submit("job", 9, alternatives=(ANYWHERE,), **spend)
    assert not record._may_fail(job_id)
    world.faults.happened(fault)
    assert record._may_fail(job_id)


@pytest.mark.parametrize("found", [False, True])
def test_a_machine_is_judged_by_when_it_was_given_up(
    world: SimWorld,
    oracles: Oracles,
    job_id: str,
    monkeypatch: pytest.MonkeyPatch,
    found: bool,
) -> None:
    """It was silent when it was given up as lost; it stayed, healed, and is gone much later."""
    monkeypatch.setattr(world, "node_of", lambda _token: new_node(job_id))
    rented = _created(world, job_id, 0)
    machine = world.machines[rented.id]
    monkeypatch.setattr(type(machine), "speaks", True)
    machine.mute_us = world.kernel.now_us
    later_us = machine.mute_us + 600 * 1_000_000
    lost = changed(new_node(job_id), state=NodeState.GONE, leave_reason=LeaveReason.LOST)
    given_up_us = later_us if found else machine.mute_us
    node = changed(lost, left_at_us=given_up_us, gone_at_us=later_us)
    with pytest.raises(ViolationError, match=r"D1 .* is ended as lost") if found else nullcontext():
        oracles.clouds._judge_reason(rented, node)


@pytest.mark.parametrize("quarantine", ["", "restored from a backup"])
def test_in_a_quarantine_nothing_is_a_leak(
    world: SimWorld, oracles: Oracles, job_id: str, monkeypatch: pytest.MonkeyPatch, quarantine: str
) -> None:
    """A machine that a row knows, and does not want: it took a terminate and stayed."""
    monkeypatch.setattr(world, "node_of", lambda _token: new_node(job_id))
    rented = _created(world, job_id, 0)
    world.restored_us = world.released_us = rented.created_us
    world.store.deployment.set_quarantine(quarantine, world.kernel.now_us)
    assert oracles.waste._held(rented) is bool(quarantine)


@pytest.mark.parametrize("unanswered", [True, False])
def test_from_a_listing_that_goes_unanswered_to_the_next_nobody_knows_of_a_machine(
    world: SimWorld,
    oracles: Oracles,
    job_id: str,
    monkeypatch: pytest.MonkeyPatch,
    unanswered: bool,
) -> None:
    monkeypatch.setattr(world, "node_of", lambda _token: new_node(job_id))
    rented = _created(world, job_id, 0)
    monkeypatch.setattr(oracles.waste, "everybody_up", lambda _rented: True)
    world.clouds[rented.provider].unanswered = {"daemon"} if unanswered else {"reaper"}
    leak = pytest.raises(ViolationError, match=r"L1 .* has belonged to nobody")
    with nullcontext() if unanswered else leak:
        oracles.waste._count({}, "L1", LEAK_S, rented, LEAK_S + 1)


@pytest.mark.parametrize("unanswered", [True, False])
def test_a_reaper_ends_what_it_was_shown(
    world: SimWorld,
    oracles: Oracles,
    job_id: str,
    monkeypatch: pytest.MonkeyPatch,
    unanswered: bool,
) -> None:
    monkeypatch.setattr(world, "node_of", lambda _token: new_node(job_id))
    rented = _created(world, job_id, 0)
    world.kernel.run(rented.created_us + int(world.timing.unattended_s * 1e6))
    world.deserted_us = rented.created_us
    world.clouds[rented.provider].unanswered = {"reaper"} if unanswered else {"daemon"}
    long = pytest.raises(ViolationError, match=r"L1 .* lives on for 86400 s more")
    with nullcontext() if unanswered else long:
        oracles.desertion._judge_age(rented, 86_400.0)


@pytest.mark.parametrize(("save_s", "found"), [(60.0, False), (5.0, True)])
def test_a_dead_man_leaves_a_slow_program_the_time_it_saves_in(
    world: SimWorld,
    oracles: Oracles,
    job_id: str,
    monkeypatch: pytest.MonkeyPatch,
    save_s: float,
    found: bool,
) -> None:
    """At 140 s before the end of its time: that is late enough for saves of 60 s alone."""
    monkeypatch.setattr(world, "node_of", lambda _token: new_node(job_id))
    rented = _created(world, job_id, 0)
    policy = StopTiming("spotd", 0.0, save_s=save_s, step_s=10.0)
    trainer = SimpleNamespace(ended=False, policy=lambda: policy)
    left_s = (1 - SLACK_SHARE) * world.timing.unattended_s - 140
    world.kernel.run(rented.created_us + int(left_s * 1e6))
    world.machines[rented.id].agent = cast("Any", SimpleNamespace(trainer=trainer))
    early = pytest.raises(ViolationError, match=r"D1 .* its dead-man stops it 20 s too early")
    with early if found else nullcontext():
        oracles.desertion._judge_early(rented, "its dead-man stops it")


@pytest.mark.parametrize("late_us", [0, 1])
def test_a_person_who_was_told_was_told_whatever_the_clock_said(
    world: SimWorld, oracles: Oracles, monkeypatch: pytest.MonkeyPatch, late_us: int
) -> None:
    """The clock of the box was ahead when it happened, and is right when it is told."""
    event = Event("notice", "going", severity=Severity.WARNING, alert=True)
    at_us = world.kernel.now_us + 3_000_000
    happened = EventRow(1, at_us + late_us, "job", event)
    monkeypatch.setattr(world.store.events, "rows", lambda *_: [happened])
    monkeypatch.setattr(world.kernel, "sleep", lambda _seconds: None)
    world.people.send([Alert(1, at_us, "job", "job", event)])
    nobody = pytest.raises(ViolationError, match=r"A1 .* nobody was told of notice of job")
    with nobody if late_us else nullcontext():
        oracles.record._judge_alerts()


@pytest.mark.parametrize("unquoted", [True, False])
def test_what_a_cloud_does_not_tell_of_its_prices_nobody_knows(
    world: SimWorld,
    oracles: Oracles,
    job_id: str,
    monkeypatch: pytest.MonkeyPatch,
    unquoted: bool,
) -> None:
    monkeypatch.setattr(world, "node_of", lambda _token: new_node(job_id))
    rented = _created(world, job_id, 0)
    cloud, [(since_us, price)] = world.clouds[rented.provider], rented.prices
    oracles.money.look(0.0)
    cloud.unquoted = unquoted
    rented.prices.append((since_us, 3 * price))
    world.kernel.run(since_us + 1_800_000_000)
    until_us = world.kernel.now_us
    assert oracles.money.spent_microusd(job_id, until_us) == 3 * price // 2
    known = price / 2 if unquoted else 3 * price / 2
    assert oracles.money.known_microusd(job_id, until_us) == pytest.approx(known, rel=0.01)
