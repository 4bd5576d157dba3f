"""Calls and what is recorded of them, on the stage's toy clouds and machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from providers.base import (
    EXPIRES_TAG,
    UNATTENDED_TAG,
    AuthError,
    CapacityError,
    NoQuotaError,
    Pending,
    PriceError,
    ProviderError,
    QuotaError,
    RejectedError,
    Scope,
    ThrottledError,
    UnknownOutcome,
    UnpreparedError,
)
from providers.catalogs.egress import first_tier_prices
from providers.catalogs.storage import storage_prices
from providers.stores.base import ObjectStore
from spotd import wire
from spotd.act.effects import call, effects_of, launch_request
from spotd.domain.events import Event
from spotd.domain.fast_replace import changed
from spotd.domain.health import Setbacks
from spotd.domain.job import CheckpointSpec, Desired, HeadSnapshot
from spotd.domain.node import EffectKind, Node
from spotd.domain.plan import Effect
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.planner.core.checkpoint_interval import prior_h
from spotd.planner.core.expiry import LIFE_LIMIT_S
from spotd.security.secrets import JobKeys, MasterKeyError
from spotd.store.audit import AuditRow
from spotd.store.errors import StoreUnavailableError
from spotd.store.outputs import OUTPUTS_SKIPPED
from spotd.wire import Command, Mount, Reply
from spotd.wire.parts import field_names, value_of
from tests.spotd.act.test_credential_leases import Listening
from tests.spotd.fake_world import Stage, job_keys
from tests.spotd.planner import build as decided


def test_a_program_that_exits_0_and_never_claimed_head_is_no_success(stage: Stage) -> None:
    """It does not use the engine that its job names: there is no HEAD, and never will be."""
    stage.submit()
    stage.run(lambda s: s.nodes("j1") and s.nodes("j1")[0].startup.hello_at_us)
    machine = stage.machine(stage.nodes("j1")[0])
    machine.exited = wire.EXIT_FINISHED  # from here on it does nothing of itself
    machine.say(wire.EXITED, code=wire.EXIT_FINISHED)
    stage.run(lambda s: s.nodes("j1", NodeState.GONE), limit_s=60.0)
    assert stage.job().outcome is Outcome.FAILED
    assert "without a final checkpoint" in stage.job().end.outcome_text


class Called:
    """One effect of a job's only node, made and recorded by hand."""

    def __init__(self, stage: Stage, **fields: Any) -> None:
        self.stage = stage
        stage.submit(**fields)
        stage.turn()  # the machine is there; nobody has spoken to it
        self.node_id = stage.nodes("j1")[0].id

    @property
    def node(self) -> Node:
        return next(node for node in self.stage.nodes("j1") if node.id == self.node_id)

    def effect(self, kind: EffectKind, **data: object) -> Effect:
        job = self.stage.job()
        return Effect(kind, self.node, job, self.stage.clock.now_us() + 15 * S, data)

    def make(self, kind: EffectKind, **data: object) -> Node:
        call(self.effect(kind, **data), self.stage.world)()
        return self.node

    def prepare(self) -> None:
        """Listed, and its agent started."""
        self.make(K.SURVEY)
        self.make(K.BOOT)


K = EffectKind
CLOUD = (K.LAUNCH, K.RESOLVE, K.SURVEY, K.TERMINATE)
VERB = {K.LAUNCH: "launch", K.RESOLVE: "list", K.SURVEY: "list", K.TERMINATE: "terminate"}
START = {"claim": "now", "claim_deadline_s": 0.0, "node_ips": ("127.0.0.1",)}


@pytest.fixture
def called(stage: Stage) -> Called:
    return Called(stage)


# --- what a refused or failed call becomes


@pytest.mark.parametrize(
    "error",
    [
        CapacityError("none left"),
        QuotaError("8 of 8 used"),
        PriceError("above your cap"),
        RejectedError("no such image"),
        AuthError("expired"),
        CapacityError("the zone is full", scope=Scope.ZONE),
        NoQuotaError("your limit is 0"),
        UnpreparedError("no subnet"),
    ],
    ids=lambda error: f"{type(error).__name__}-{error.scope.value}",
)
def test_a_refused_create_says_why_and_what_it_spoils(stage: Stage, error: ProviderError) -> None:
    stage.clouds["aws"].fail("launch", error)
    node = Called(stage).node
    assert (node.machine.launch_error, node.machine.launch_error_code) == (
        str(error),
        type(error).__name__,
    )
    market = stage.store.market.load(stage.clock.now_us())
    (refusal,) = market.refusals
    assert (refusal.offer_key, refusal.scope) == (node.offer.key, error.scope)
    assert dict(market.launch.disabled) == (
        {"aws": "expired"} if isinstance(error, AuthError) else {}
    )


@pytest.mark.parametrize("kind", CLOUD)
@pytest.mark.parametrize("error", [UnknownOutcome("502"), ThrottledError("slow"), AuthError("no")])
def test_a_cloud_that_fails_is_on_record_with_its_words(
    called: Called, kind: EffectKind, error: ProviderError
) -> None:
    if kind is K.LAUNCH and isinstance(error, AuthError):
        return  # a refusal: above
    before = called.node
    called.stage.clouds["aws"].fail(VERB[kind], error)
    after = called.make(kind)
    assert str(error) in after.call.effect_error
    failed = {"effect_error", "effect_failures", "effect_failed_at_us"}
    names = field_names(type(after))
    assert {name for name in names if value_of(after, name) != value_of(before, name)} <= failed


@pytest.mark.parametrize(("asked_s", "waited_s"), [(30.0, 30.0), (86_400.0, 300.0)])
def test_a_cloud_that_asks_for_a_pause_has_it(
    stage: Stage, asked_s: float, waited_s: float
) -> None:
    stage.clouds["aws"].fail("launch", ThrottledError("slow down", retry_after_s=asked_s))
    stage.submit()
    stage.turn()
    said_us = stage.clock.now_us()
    stage.run(lambda s: s.alive(), limit_s=400.0)
    assert 0 <= (stage.clock.now_us() - said_us) / S - waited_s <= 1.0
    assert stage.clouds["aws"].calls["launch"] == 2


@pytest.mark.parametrize("kind", [K.BOOT, K.START, K.RELEASE, K.DRAIN, K.SAVE])
def test_a_node_that_does_not_answer_is_on_record(called: Called, kind: EffectKind) -> None:
    called.stage.strike(called.node)
    after = called.make(kind, **START)
    assert after.call.effect_error == "LinkError: the machine does not answer"
    assert not after.startup.booted_at_us
    assert not after.startup.started_at_us


def test_a_command_that_the_agent_refuses_is_told_with_its_words(called: Called) -> None:
    called.make(K.SURVEY)
    assert (
        called.make(K.START, **START).call.effect_error
        == "LinkError: start refused: no agent runs here"
    )


@pytest.mark.parametrize("kind", [K.RESOLVE, K.SURVEY, K.TERMINATE])  # creates: test_launches.py
def test_a_cloud_that_was_taken_out_of_the_configuration_is_named(
    called: Called, kind: EffectKind
) -> None:
    """Its machines still cost money: silence would hide that."""
    del called.stage.clouds["aws"]
    assert "[providers.aws]" in called.make(kind).call.effect_error


@pytest.mark.parametrize("part", ["keys", "secrets"])
def test_a_key_that_does_not_open_is_told_and_not_a_bug(called: Called, part: str) -> None:
    def locked(job_id: str) -> object:
        raise MasterKeyError(f"the stored secret of {job_id} does not open", "start with its key")

    called.prepare()
    called.stage.world = replace(called.stage.world, **{part: locked})
    assert "does not open" in called.make(K.START, **START).call.effect_error
    assert called.stage.link.said["start"] == 0


def test_our_own_store_being_away_is_not_recorded_as_the_nodes_failure(called: Called) -> None:
    def away(job_id: str) -> object:
        raise StoreUnavailableError("away")

    called.stage.world = replace(called.stage.world, keys=away)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailableError):
        call(called.effect(K.BOOT), called.stage.world)


# --- what a call that went well becomes


def test_a_retried_create_is_the_very_same_request(called: Called) -> None:
    """Byte for byte, or the cloud would refuse the token; host keys included."""
    effect = called.effect(K.LAUNCH)
    first = launch_request(effect, job_keys(), "d0")
    assert launch_request(effect, job_keys(), "d0") == first
    other = replace(effect, node=replace(effect.node, token="t-other"))
    assert launch_request(other, job_keys(), "d0").host_private_key != first.host_private_key
    assert first.tags["spotd-deployment"] == "d0"
    assert first.tags["spotd-token"] == first.token == effect.node.token


def test_a_create_carries_its_limits_from_what_is_committed(called: Called) -> None:
    """Whatever the configuration says by the time that it is tried again."""
    effect = called.effect(K.LAUNCH)
    node = changed(effect.node, requested_at_us=100 * S, expires_at_us=4_000 * S)
    request = launch_request(replace(effect, node=node), job_keys(), "d0")
    assert (request.tags[EXPIRES_TAG], request.tags[UNATTENDED_TAG]) == ("4000", "3900")
    assert request.max_run_s == LIFE_LIMIT_S
    # A row from before there were expiries asks as it asked then.
    old = launch_request(replace(effect, node=changed(node, expires_at_us=0)), job_keys(), "d0")
    assert EXPIRES_TAG not in old.tags
    assert old.max_run_s == 0


@pytest.mark.parametrize(
    ("ranks", "sold", "asked"),
    [
        (2, {"interconnect": "efa", "reservation": "cr-1"}, ("efa", "cr-1")),
        (2, {}, ("", "")),
        (1, {"interconnect": "efa"}, ("", "")),  # it has nobody to talk to
    ],
)
def test_a_gang_asks_for_what_its_offer_has(
    called: Called, ranks: int, sold: dict[str, Any], asked: tuple[str, str]
) -> None:
    effect = called.effect(K.LAUNCH)
    job = replace(effect.job, spec=changed(effect.job.spec, num_nodes=ranks))
    node = replace(effect.node, offer=replace(effect.node.offer, **sold))
    effect = replace(effect, job=job, node=node)
    request = launch_request(effect, job_keys(), "d0")
    assert (request.interconnect, request.reservation) == asked
    assert bool(request.gang) is bool(asked[0])
    mate = replace(node, id=node.id.replace("-r0", "-r1"), rank=1, token="another")
    assert launch_request(replace(effect, node=mate), job_keys(), "d0").gang == request.gang


def test_a_create_that_is_still_being_worked_on_is_nothing_yet(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = called.node
    cloud = called.stage.clouds["aws"]
    monkeypatch.setattr(cloud, "launch", lambda request: Pending("op-1"))
    assert called.make(K.LAUNCH) == before


def test_start_ships_the_packages_and_then_everything_the_program_needs(stage: Stage) -> None:
    packages = (Mount("d1", ""), Mount("d2", "~/data"))
    saves = {"every_steps": 7, "every_s": 11.0, "keep": 13, "keep_every_steps": 500}
    checkpoint = CheckpointSpec("file:///own", "spotd", **saves)
    times = {"stop_grace_s": 17.0, "progress_every_s": 19.0}
    spec = {"run": "python x.py", "checkpoint": checkpoint, **times}
    called = Called(stage, packages=packages, envs={"LR": "1"}, setup="pip install x", **spec)
    called.prepare()
    known = HeadSnapshot(4, 80, "m", released=False, final=False, seen_at_us=1)
    stage.store.jobs.record_head("j1", known)
    sent: list[object] = []
    given_s: list[float] = []
    link = stage.link

    class Listening:
        """Hears what the link is told."""

        def put_package(
            self, node: Node, keys: JobKeys, digest: str, source: object, deadline_s: float
        ) -> None:
            sent.append(digest)
            given_s.append(deadline_s)
            stage.clock.sleep(5)

        def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply:
            sent.append(command)
            given_s.append(deadline_s)
            return link.send(node, keys, command, deadline_s)

    stage.world = replace(
        stage.world,
        link=Listening(),  # type: ignore[arg-type]
        secrets=lambda _job: {"HF_TOKEN": "hf_1"},
        job_stores=replace(stage.world.job_stores, options=lambda _url: {"region": "r"}),
    )
    after = called.make(
        K.START, **(START | {"claim": "after_release", "claim_deadline_s": 9.0, "suspect": "m-7"})
    )
    *digests, command = sent
    assert digests == ["d1", "d2"]
    assert given_s == [14.0, 9.0, 4.0], "one deadline for all, and a second to record the outcome"
    assert isinstance(command, Command)
    document = wire.parse_start(json.loads(json.dumps(command.data)))
    assert (document.head.claim, document.head.claim_deadline_s) == ("after_release", 9.0)
    assert (document.head.suspect, document.checkpoint.keep_every_steps) == ("m-7", 500)
    assert document.head.head_generation == 4
    assert (document.program.envs, document.program.setup) == ({"LR": "1"}, "pip install x")
    assert (document.program.secrets, document.storage.store_options) == (
        {"HF_TOKEN": "hf_1"},
        {"region": "r"},
    )
    assert [package.target for package in document.files.packages] == ["", "~/data"]
    saves = (
        document.checkpoint.engine,
        document.checkpoint.every_steps,
        document.checkpoint.every_s,
        document.checkpoint.keep,
    )
    assert saves == ("spotd", 7, 11.0, 13)
    assert (document.program.stop_grace_s, document.program.progress_every_s) == (17.0, 19.0)
    assert (document.job_name, document.program.run, document.gang.num_nodes) == (
        "j1",
        "python x.py",
        1,
    )
    assert (document.storage.store_url, document.gang.accelerators_per_node) == ("file:///own", 8)
    assert document.gang.node_ips == START["node_ips"]
    assert (after.startup.started_claim, after.startup.started_at_us) == (
        "after_release",
        stage.clock.now_us(),
    )


def test_secrets_leave_the_box_on_record_or_not_at_all(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = Called(stage)
    called.prepare()
    called.make(K.START, **START)
    assert stage.store.audit.rows(0) == [], "there were none"
    stage.world = replace(stage.world, secrets=lambda _job: {"WANDB": "w", "HF_TOKEN": "hf_1"})
    called.make(K.START, **START)
    [row] = stage.store.audit.rows(0)
    assert (row.user, row.uid, row.action, row.target) == ("spotd", -1, "secrets read", "j1")
    assert row.text == f"HF_TOKEN, WANDB to {called.node_id}"

    def away(_row: AuditRow) -> None:
        raise StoreUnavailableError("the disk is full")

    def send(*_: object) -> Reply:
        raise AssertionError("nothing may be sent")

    monkeypatch.setattr(stage.store.audit, "add", away)
    monkeypatch.setattr(stage.world.link, "send", send)
    with pytest.raises(StoreUnavailableError):
        called.make(K.START, **START)


@pytest.mark.parametrize("desired", [Desired.CANCEL, Desired.PAUSE])
@pytest.mark.parametrize("skips", [True, False])
def test_a_cancel_without_outputs_leaves_them_no_time(
    called: Called, monkeypatch: pytest.MonkeyPatch, desired: Desired, *, skips: bool
) -> None:
    sent: list[Command] = []

    def send(_node: Node, _keys: object, command: Command, _left_s: float) -> Reply:
        sent.append(command)
        return Reply(ok=True)

    stage = called.stage
    monkeypatch.setattr(stage.world.link, "send", send)
    if skips:
        stage.store.events.add("j1", Event(OUTPUTS_SKIPPED, "as asked"), stage.clock.now_us())
    stage.store.jobs.set_desired("j1", desired, stage.clock.now_us())
    called.make(K.DRAIN)
    wanted = not skips or desired is Desired.PAUSE
    assert sent[0].data["outputs_s"] == (3600.0 if wanted else 0.0)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (K.RELEASE, "told_release_at_us"),
        (K.DRAIN, "told_drain_at_us"),
        (K.SAVE, "told_save_at_us"),
        (K.TERMINATE, "terminated_at_us"),
        (K.SURVEY, "surveyed_at_us"),
        (K.BOOT, "booted_at_us"),
    ],
)
def test_what_was_done_is_on_record(called: Called, kind: EffectKind, column: str) -> None:
    called.prepare()
    called.stage.clock.sleep(3.0)
    assert value_of(called.make(kind), column) == called.stage.clock.now_us()


def test_a_create_is_only_absent_when_none_can_be_in_flight_any_more(stage: Stage) -> None:
    stage.clouds["aws"].fail("launch", *[UnknownOutcome("cut off")] * 9)
    called = Called(stage)
    stage.store.jobs.set_desired("j1", Desired.CANCEL, stage.clock.now_us())
    stage.run(lambda s: s.nodes("j1", NodeState.TERMINATING))
    left_us = called.node.departure.left_at_us
    stage.clouds["aws"].visibility_s = 5.0
    for after_s, gone in ((1.0, False), (19.9, False), (20.1, True)):
        stage.clock.sleep(after_s - (stage.clock.now_us() - left_us) / S)
        assert bool(called.make(K.RESOLVE).machine.gone_at_us) is gone


def test_a_create_whose_answer_was_lost_is_found_by_its_token(stage: Stage) -> None:
    stage.clouds["aws"].fail("launch", UnknownOutcome("cut off"), answer=True)
    called = Called(stage)
    assert not called.node.instance_id
    assert called.make(K.RESOLVE).instance_id == stage.alive()[0]


def head_of(stage: Stage) -> HeadSnapshot | None:
    return stage.job().head


def test_a_reading_of_head_counts_from_its_beginning(called: Called) -> None:
    """What happens while a slow store answers need not be in the answer."""
    stage = called.stage
    stage.run(lambda s: s.job().outcome)
    asked_us = stage.clock.now_us()

    def slow(_url: str) -> ObjectStore:
        stage.clock.sleep(7.0)
        return stage.commits

    stage.world = replace(stage.world, job_stores=replace(stage.world.job_stores, open=slow))
    called.make(K.READ_HEAD)
    head = head_of(stage)
    assert head is not None
    assert head.read_at_us == asked_us


def test_head_is_read_as_it_is(called: Called) -> None:
    stage = called.stage
    stage.run(lambda s: s.job().outcome)
    stage.clock.sleep(5.0)
    called.make(K.READ_HEAD)
    head = head_of(stage)
    assert head is not None
    assert (head.final, head.released, head.step) == (True, True, 60)
    assert head.read_at_us == stage.clock.now_us()


def test_a_head_that_is_damaged_decides_nothing(called: Called) -> None:
    stage = called.stage
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    before = head_of(stage)
    key = wire.head_key("j1")
    stage.commits.put_if(key, b'{"head": {}}', stage.commits.get(key)[1])
    assert "WireError" in called.make(K.READ_HEAD).call.effect_error
    assert head_of(stage) == before


def test_a_head_that_vanished_is_the_stores_trouble(called: Called) -> None:
    stage = called.stage
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    stage.commits.delete(wire.head_key("j1"))
    assert "NotFoundError" in called.make(K.READ_HEAD).call.effect_error


# --- which calls follow from a commit


def test_only_what_was_armed_is_called_for_and_in_the_order_of_the_nodes() -> None:
    armed = {"effect": K.SURVEY, "effect_armed_at_us": decided.NOW}
    nodes = [decided.node(NodeState.BOOTING, candidate=c, **armed) for c in range(3)]
    view = decided.view(*nodes)
    found = effects_of(view, {nodes[2].id, nodes[0].id}, decided.NOW)
    assert [effect.node for effect in found] == [nodes[0], nodes[2]]
    assert effects_of(view, set(), decided.NOW) == []


def test_a_start_names_the_image_by_the_digest_that_the_job_began_with(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = Called(stage, image_id="docker:r.io/x:1")
    called.prepare()
    sent: list[str] = []

    def send(_node: Node, _keys: JobKeys, command: Command, _deadline_s: float) -> Reply:
        sent.append(str(command.data["image"]))
        return Reply(True)

    monkeypatch.setattr(stage.link, "send", send)
    called.make(K.START, **START)
    found = Event("image_found", "pulled", data={"digest": "sha256:d"})
    stage.store.events.add("j1", found, stage.clock.now_us())
    called.make(K.START, **START)
    assert sent == ["r.io/x:1", "r.io/x@sha256:d"]


def test_a_start_knows_its_gang_and_when_it_may_claim() -> None:
    old = decided.node(
        NodeState.DRAINING, notices=(decided.notice(50.0),), leave_reason=LeaveReason.PREEMPTED
    )
    gang = [
        decided.hello(generation=2, rank=rank, chosen=True, host=f"10.0.0.{rank}", effect=K.START)
        for rank in (1, 0)
    ]
    view = replace(decided.view(old, *gang), setbacks=Setbacks(suspect="m-7"))
    found = effects_of(view, {node.id for node in gang}, decided.NOW)
    for effect in found:
        assert effect.data["node_ips"] == ("10.0.0.0", "10.0.0.1"), "by rank"
        assert effect.data["claim"] == "after_release"
        assert effect.data["claim_deadline_s"] == 50.0
        assert effect.data["suspect"] == "m-7"


def test_the_ranks_of_a_gang_hear_the_addresses_that_their_cloud_told(stage: Stage) -> None:
    """From a listing to what the agents are started with."""
    starts: list[Mapping[str, object]] = []
    stage.world = replace(
        stage.world,
        link=Listening(stage.link, starts),  # type: ignore[arg-type]
    )
    stage.goal = None
    stage.submit(num_nodes=2)
    stage.run(lambda _: len(starts) >= 2)
    ranks = sorted(stage.nodes("j1"), key=lambda node: node.rank)
    machines = stage.clouds[ranks[0].offer.provider].machines
    told = [machines[node.instance_id].instance.private_host for node in ranks]
    assert len(set(told)) == 2
    assert [start["node_ips"] for start in starts] == [tuple(told)] * 2


@pytest.mark.parametrize("options", [{"endpoint": "https://elsewhere"}, {}])
def test_a_job_that_chooses_its_own_pauses_hears_how_long_machines_live(
    stage: Stage, options: Mapping[str, str]
) -> None:
    """Of a cloud other than the store's, also what a GB to it costs, in time of the machine; of a
    store whose prices are known, what a write does."""
    starts: list[Mapping[str, object]] = []
    stage.world = replace(
        stage.world,
        link=Listening(stage.link, starts),  # type: ignore[arg-type]
        job_stores=replace(stage.world.job_stores, options=lambda _url: dict(options)),
    )
    stage.goal = None
    auto = CheckpointSpec("s3://b/x", "spotd", auto=True)
    for job, saves in (("j1", auto), ("j2", replace(auto, auto=False))):
        stage.submit(job, checkpoint=saves)
        stage.run(lambda s, job=job: bool(s.nodes(job, NodeState.RUNNING)))
    offer = stage.nodes("j1")[0].offer
    told = {start["job_name"]: start for start in starts}
    assert told["j1"]["auto"] is True
    assert told["j1"]["mtbf_s"] == pytest.approx(prior_h(offer) * 3600, rel=0.02)
    second_microusd = offer.price_microusd_per_h / 3600
    gb = first_tier_prices().get(offer.cloud, 0) / second_microusd
    assert told["j1"]["gb_costs_s"] == pytest.approx(gb)
    put = 0.0 if options else storage_prices()["aws"].microusd_per_1000_writes / 1000
    assert told["j1"]["put_costs_s"] == pytest.approx(put / second_microusd)
    assert (told["j2"]["auto"], told["j2"]["mtbf_s"]) == (False, 0.0)
