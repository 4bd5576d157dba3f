"""The box lends what machines need of a store, renews it in time, and tells when it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from providers.base import AuthError
from providers.credential_leases import CredentialIssuer, LeasedCredentials
from providers.iam.policy import StorePrefix
from providers.stores.base import StoreUnavailableError
from spotd import wire
from spotd.act.credential_leases import TRUST_S, CredentialLeases
from spotd.act.effects import NodeStoreAccess
from spotd.act.lease_records import ShardLeases
from spotd.act.node_link import LinkError
from spotd.act.saver_env import SaverPackages, StandalonePython
from spotd.base.clock import Clock
from spotd.config.schedule import Schedule
from spotd.domain.datasets import DataSet
from spotd.domain.fast_replace import changed
from spotd.domain.job import CheckpointSpec
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.planner.core.credential_lease import StoreAccess
from spotd.planner.core.shard_stores import StorePlace as Spot
from spotd.security.secrets import JobKeys
from spotd.wire import Bucket, Command, MountMode, Reply
from tests.spotd.fake_world import NOW, Stage, job_keys
from tests.spotd.planner.build import job, node, offer, spec

HOUR_S = 3600.0
TICK_S = Schedule.credential_leases_s
URL = "s3://bucket/runs"
OPTIONS = {"region": "r", "access_key_id": "AKIA", "secret_access_key": "s3cret"}


@dataclass
class Bank:
    """The store's cloud, the machines' files, and when somebody could not have saved."""

    stage: Stage
    lasts_s: float = HOUR_S
    trouble: Exception | None = None
    away: bool = False
    takes_s: float = 0.0
    refusals: int = 0
    asked: list[tuple[StorePrefix, str]] = field(default_factory=list)
    files: dict[str, LeasedCredentials] = field(default_factory=dict)

    def issue(self, place: StorePrefix, name: str) -> LeasedCredentials:
        if self.trouble is not None:
            self.refusals += 1
            raise self.trouble
        self.asked.append((place, name))
        self.stage.clock.sleep(self.takes_s)
        until_us = self.stage.clock.now_us() + int(self.lasts_s * S)
        return LeasedCredentials("aws", f"secret {len(self.asked)}", until_us)


@dataclass
class Link:
    """SSH, as far as lending goes."""

    bank: Bank

    def lend(self, node: Node, keys: JobKeys, lent: LeasedCredentials, deadline_s: float) -> str:
        if self.bank.away:
            raise LinkError("no route to host")
        self.bank.files[node.id] = lent
        return "/dev/shm/x/store-credentials"


class Listening:
    """Hears what machines are started with."""

    def __init__(self, link: object, starts: list[Mapping[str, object]]) -> None:
        self._link, self._starts = link, starts

    def __getattr__(self, name: str) -> object:
        return getattr(self._link, name)

    def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply:
        if command.name == wire.START:
            self._starts.append(command.data)
        return self._link.send(node, keys, command, deadline_s)  # type: ignore[attr-defined]


class Lending:
    """A job that trains, and was lent an hour."""

    def __init__(
        self, stage: Stage, lends: str = "all", proves: str = "", start: bool = True
    ) -> None:
        self.stage = stage
        self.proves = frozenset(proves.split())
        self.bank = Bank(stage)
        self.lends = lends
        self.lender: CredentialIssuer | None = self.bank
        self.loans = self.new_daemon()
        self.starts: list[Mapping[str, object]] = []
        stage.world = replace(
            stage.world,
            link=Listening(stage.link, self.starts),  # type: ignore[arg-type]
            job_stores=replace(stage.world.job_stores, options=lambda _url: OPTIONS),
            store_access=NodeStoreAccess(
                lend=lambda job, node, s: self.loans.begin(stage.store, job, node, s),
                lendable=self.loans.check,
            ),
        )
        stage.goal = None
        stage.submit(checkpoint=CheckpointSpec(store=URL, engine="spotd"))
        if start:
            self.start()

    def start(self) -> None:
        self.stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))

    def new_daemon(self) -> CredentialLeases:
        proof = {"role": "arn:role", "audience": "spotd"}
        access = StoreAccess(
            URL, "gcp", lends=self.lends, keys=True, proof=proof, proves=self.proves
        )
        return CredentialLeases(
            lambda _url: access,
            lambda _url: self.lender,
            lambda _url: OPTIONS,
            Link(self.bank),
            lambda _job: job_keys(),
            self.stage.clock,
        )

    @property
    def node(self) -> Node:
        [node] = self.stage.nodes("j1", NodeState.RUNNING)
        return node

    @property
    def left_s(self) -> float:
        """For which the machine can still save."""
        return (self.bank.files[self.node.id].expires_at_us - self.stage.clock.now_us()) / S

    def told(self) -> list[str]:
        rows = self.stage.store.events.rows("j1")
        return [row.event.text for row in rows if row.event.kind == "not_lent"]

    def pass_s(self, seconds: float) -> None:
        """The daemon lives, and looks every so often."""
        for _ in range(round(seconds / TICK_S)):
            self.stage.clock.sleep(TICK_S)
            self.loans.renew(self.stage.store)


@pytest.fixture
def lending(stage: Stage) -> Lending:
    return Lending(stage)


def test_a_machine_starts_with_its_own_folder_and_no_key_of_ours(lending: Lending) -> None:
    [(place, name)] = set(lending.bank.asked)
    assert (place.bucket, place.prefix, name) == ("bucket", "runs/jobs/j1/", "j1")
    assert lending.starts[-1]["store_options"] == {
        "region": "r",
        "credentials_file": "/dev/shm/x/store-credentials",
    }
    node = lending.node
    assert node.lease.lent_until_us == lending.bank.files[node.id].expires_at_us
    assert node.lease.lent_until_us - node.lease.lent_at_us == int(HOUR_S * S)
    [row] = lending.stage.store.audit.rows(0)
    assert (row.user, row.action, row.target) == ("spotd", "store lent", "j1")
    assert row.text == f"credentials of runs/jobs/j1/ to {node.id}"
    assert "secret 1" not in str(lending.stage.store.events.rows("j1"))


def test_who_has_rights_of_its_own_is_lent_nothing(stage: Stage) -> None:
    lending = Lending(stage, lends="")
    assert lending.bank.asked == []
    assert lending.starts[-1]["store_options"] == OPTIONS
    assert lending.node.lease.lent_until_us == 0
    lending.pass_s(2 * HOUR_S)
    assert lending.bank.asked == []


def test_who_shows_what_it_is_is_told_how_and_lent_nothing(stage: Stage) -> None:
    lending = Lending(stage, lends="others", proves="aws")
    assert lending.bank.asked == []
    assert lending.starts[-1]["store_options"] == {
        "region": "r",
        "identity": "aws",
        "session": "spotd-j1",
        "role": "arn:role",
        "audience": "spotd",
    }
    assert (lending.node.lease.lent_at_us, lending.node.lease.lent_until_us) == (0, 0)
    assert stage.store.audit.rows(0) == [], "no secret was handed out"


def test_a_loan_is_renewed_at_a_third_of_its_time(lending: Lending) -> None:
    before = lending.node.lease.lent_at_us
    lending.stage.clock.sleep((before + 1190 * S - lending.stage.clock.now_us()) / S)
    lending.loans.renew(lending.stage.store)
    assert len(lending.bank.asked) == 2, "before the machine was asked for, and when it starts"
    lending.stage.clock.sleep(10)
    lending.loans.renew(lending.stage.store)
    lending.loans.renew(lending.stage.store)
    assert len(lending.bank.asked) == 3
    assert lending.left_s == pytest.approx(HOUR_S)
    assert lending.node.lease.lent_until_us == lending.bank.files[lending.node.id].expires_at_us
    lending.pass_s(10 * HOUR_S)
    assert len(lending.bank.asked) == pytest.approx(3 + 30, abs=2), "three an hour"


@pytest.mark.parametrize("dies_after_s", [0.0, 600.0, 1170.0, 1230.0, 5000.0])
def test_a_box_that_is_dead_for_half_of_the_time_loses_nothing(
    lending: Lending, dies_after_s: float
) -> None:
    """Whenever it dies; and a new daemon, which remembers nothing, goes on at once."""
    lending.pass_s(dies_after_s)
    lending.stage.clock.sleep(HOUR_S / 2)
    assert lending.left_s > HOUR_S / 2 * 0.3
    lending.loans = lending.new_daemon()
    lending.loans.renew(lending.stage.store)
    lending.pass_s(60)
    assert lending.left_s > HOUR_S / 2


def test_a_renewal_that_fails_is_told_once_at_half_of_the_time_and_goes_on(
    lending: Lending,
) -> None:
    lending.bank.trouble = AuthError("not authorized to perform: sts:AssumeRole")
    lending.pass_s(1700)
    assert lending.told() == []
    lending.pass_s(600)
    [text] = lending.told()
    assert "sts:AssumeRole" in text
    assert "saves for 0.5 h more" in text
    market = lending.stage.store.market.load(lending.stage.clock.now_us())
    assert market.launch.disabled == {}, "not the machine's cloud is to blame"
    lending.bank.trouble = None
    lending.bank.away = True
    lending.pass_s(60)
    assert len(lending.told()) == 1
    lending.bank.away = False
    lending.pass_s(60)
    assert lending.left_s > 3500
    lending.bank.away = True
    lending.pass_s(2000)
    assert len(lending.told()) == 2, "another time, another word"
    assert "no route to host" in lending.told()[1]


def test_a_machine_that_cannot_be_lent_anything_does_not_start(stage: Stage) -> None:
    lending = Lending(stage)
    [job] = stage.store.jobs.rows(finished=False)
    lending.bank.trouble = AuthError("no")
    with pytest.raises(StoreUnavailableError, match="s3://bucket/runs"):
        lending.loans.begin(stage.store, job, lending.node, 10.0)
    lending.bank.trouble = None
    lending.lender = None
    with pytest.raises(StoreUnavailableError, match="see \\[stores\\]"):
        lending.loans.begin(stage.store, job, lending.node, 10.0)


def test_nothing_is_rented_while_nothing_can_be_lent(stage: Stage) -> None:
    """A machine that cannot be lent what it needs would be given up and paid for, and so would the
    next one, for as long as whoever lends refuses."""
    lending = Lending(stage, start=False)
    lending.bank.trouble = AuthError("not authorized to perform: sts:AssumeRole")
    stage.tick_s = 2.0
    stage.run(lambda s: s.clock.now_us() > NOW + 1800 * S, limit_s=2000)
    assert launches(stage) == 0
    assert {node.instance_id for node in stage.nodes("j1")} <= {""}
    assert "was refused: no credentials of s3://bucket/runs" in stage.told()
    assert 4 <= lending.bank.refusals <= 40, "it is tried again, and not all the time"
    lending.bank.trouble = None
    lending.start()
    assert sum(len(cloud.machines) for cloud in stage.clouds.values()) == 1


def test_who_was_lent_something_a_moment_ago_is_not_asked_before_each_machine(
    lending: Lending,
) -> None:
    [job] = lending.stage.store.jobs.rows(finished=False)
    asked = len(lending.bank.asked)
    lending.loans.check(job, lending.node)
    assert len(lending.bank.asked) == asked
    lending.stage.clock.sleep(TRUST_S + 1)
    lending.loans.check(job, lending.node)
    lending.loans.check(job, lending.node)
    assert len(lending.bank.asked) == asked + 1


def test_an_answer_that_takes_too_long_leaves_no_time_for_a_create(stage: Stage) -> None:
    """A create has to have ended by its deadline: after that nobody waits for its machine."""
    lending = Lending(stage, start=False)
    lending.bank.takes_s = 9.0
    stage.run(lambda s: lending.bank.asked)
    assert launches(stage) == 0
    [node] = stage.nodes("j1")
    assert "took too long" in node.call.effect_error
    lending.bank.takes_s = 0.0
    lending.start()
    assert launches(stage) == 1


def launches(stage: Stage) -> int:
    return sum(cloud.calls["launch"] for cloud in stage.clouds.values())


def test_a_machine_that_is_away_keeps_no_other_waiting(lending: Lending) -> None:
    """All that are due are seen in one round, and who fails keeps nobody from it."""
    seen: list[str] = []
    node = lending.node
    nodes = [changed(node, id=f"n{i}", link_down_at_us=i % 2) for i in range(4)]
    until: Mapping[str, int] = {n.id: n.lease.lent_until_us for n in nodes}
    assert until
    lending.stage.clock.sleep(HOUR_S / 2)

    def record_lease(node_id: str, at_us: int, until_us: int) -> None:
        del at_us, until_us
        seen.append(node_id)

    four = SimpleNamespace(active=lambda: nodes, record_credential_lease=record_lease)
    store = SimpleNamespace(
        nodes=four,
        jobs=SimpleNamespace(find=lending.stage.store.jobs.find),
        events=SimpleNamespace(add=lambda *_: None),
    )

    def lend(node: Node, *_: object) -> str:
        if node.agent.link_down_at_us:
            raise LinkError("away")
        return "/x"

    lending.loans._link = type("L", (), {"lend": staticmethod(lend)})()  # type: ignore[assignment]
    lending.loans.renew(store)  # type: ignore[arg-type]
    assert sorted(seen) == ["n0", "n2"]


@pytest.mark.parametrize(
    ("access", "wanted"),
    [
        (StoreAccess(URL, "aws", keys=True), OPTIONS),
        (StoreAccess(URL, "aws", lends="all", keys=True), {"region": "r"}),
        (StoreAccess(URL, "aws", roles=frozenset({"aws"})), {"region": "r"}),
        (StoreAccess(URL), {"region": "r"}),
        (
            StoreAccess(URL, "aws", proof={"role": "arn"}, proves=frozenset({"local"})),
            {"region": "r", "identity": "local", "role": "arn"},
        ),
    ],
)
def test_a_bucket_of_data_is_opened_by_keys_for_machines_or_by_what_they_are(
    stage: Stage, access: StoreAccess, wanted: Mapping[str, str]
) -> None:
    link = Link(Bank(stage))
    loans = CredentialLeases(
        lambda _: access, lambda _: None, lambda _: OPTIONS, link, lambda _: job_keys(), stage.clock
    )
    one = job(spec=spec(buckets=(wire.Bucket("/d", URL),)))
    [found] = loans.buckets(one, node(offer=offer(cloud="local")))
    assert (found.target, found.url, dict(found.options)) == ("/d", URL, dict(wanted))
    assert "s3cret" not in repr(found)


# --- stores beside the job's own, for shards

EAST, WEST = "s3://east", "s3://west"


@dataclass
class Files:
    """Machines' files by store, and stores of which nothing can be lent."""

    clock: Clock
    files: dict[str, LeasedCredentials] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    short: set[str] = field(default_factory=set)

    def lend(self, *told: Any) -> str:
        url = told[4] if len(told) > 4 else URL
        self.files[url] = told[2]
        return f"/dev/shm/{url[5:]}"

    def lender(self, url: str) -> CredentialIssuer:
        class Makes:
            def issue(_self, place: StorePrefix, name: str) -> LeasedCredentials:  # noqa: N805
                if url in self.away:
                    raise AuthError("AccessDenied")
                lasts_s = HOUR_S / 4 if url in self.short else HOUR_S
                return LeasedCredentials(
                    "aws", f"secret of {url}", self.clock.now_us() + int(lasts_s * S)
                )

        return Makes()


def shard_loans(files: Files, node: Node, lends: str = "all") -> CredentialLeases:
    """EAST is beside the machine."""
    here = Spot(node.offer.cloud or node.offer.provider, node.offer.region)
    places = {URL: Spot("gcp", "r0"), EAST: here, WEST: Spot("aws", "r2")}
    return CredentialLeases(
        lambda url: StoreAccess(url, "aws", lends=lends, keys=not lends),
        files.lender,
        lambda _url: OPTIONS,
        files,  # type: ignore[arg-type]
        lambda _job: job_keys(),
        files.clock,
        lambda: (places, (EAST, WEST)),
    )


def test_a_machine_is_given_each_store_that_may_have_shards(lending: Lending) -> None:
    files = Files(lending.stage.clock, short={WEST})
    job = lending.stage.store.jobs.find("j1")
    assert job is not None
    given = shard_loans(files, lending.node).shards(lending.stage.store, job, lending.node, 10.0)
    assert given.url == EAST
    assert [one.url for one in given.stores] == [EAST, WEST]
    assert given.stores[0].options == {"region": "r", "credentials_file": "/dev/shm/east"}
    assert {url: lent.text for url, lent in files.files.items()} == {
        EAST: f"secret of {EAST}",
        WEST: f"secret of {WEST}",
    }
    assert given.until_us == files.files[WEST].expires_at_us, "renewed when the first one ends"
    keys = shard_loans(files, lending.node, lends="").shards(
        lending.stage.store, job, lending.node, 10.0
    )
    assert (keys.until_us, keys.stores[0].options) == (0, OPTIONS)


def test_all_that_was_lent_is_renewed(lending: Lending) -> None:
    files = Files(lending.stage.clock)
    loans = shard_loans(files, lending.node)
    lending.stage.clock.sleep(HOUR_S / 2)
    loans.renew(lending.stage.store)
    assert set(files.files) == {URL, EAST, WEST}
    assert lending.node.lease.lent_until_us == files.files[WEST].expires_at_us


def test_a_store_that_cannot_be_lent_is_done_without_unless_work_lies_there(
    lending: Lending,
) -> None:
    stage, files = lending.stage, Files(lending.stage.clock, away={EAST})
    job = stage.store.jobs.find("j1")
    assert job is not None
    given = shard_loans(files, lending.node).shards(stage.store, job, lending.node, 10.0)
    assert given.url == ""
    assert [one.url for one in given.stores] == [WEST]
    said = [row.event for row in stage.store.events.rows("j1") if row.event.kind == "shards_away"]
    assert EAST in said[0].text
    heir = replace(lending.node, generation=lending.node.generation + 1)
    with pytest.raises(StoreUnavailableError, match="AccessDenied"):
        shard_loans(files, lending.node).shards(stage.store, job, heir, 10.0)


def test_a_job_that_saves_nothing_by_us_is_given_no_store_more(lending: Lending) -> None:
    job = lending.stage.store.jobs.find("j1")
    assert job is not None
    script = replace(job, spec=replace(job.spec, checkpoint=CheckpointSpec(store=URL)))
    files = Files(lending.stage.clock)
    assert (
        shard_loans(files, lending.node).shards(lending.stage.store, script, lending.node, 10.0)
        == ShardLeases()
    )
    assert files.files == {}


def test_a_rented_machine_is_sent_what_its_saver_needs(stage: Stage) -> None:
    """Asked first, for it may need nothing; and told which package it is. A Python that does not
    get there in time keeps nobody from the start."""
    lending, sent = Lending(stage, start=False), []

    class Sending(Listening):
        def put_package(self, *told: object, unless: str = "") -> None:
            sent.append((told[2], unless))
            if told[2] == "py1":
                raise LinkError("no answer within 6 s")

    stage.world = replace(
        stage.world,
        tools=lambda: SaverPackages(
            "d1gest", (StandalonePython("py1", "x86_64"), StandalonePython("py2", "aarch64"))
        ),
        link=Sending(stage.link, lending.starts),  # type: ignore[arg-type]
    )
    lending.start()
    assert sent == [
        ("d1gest", "--unless-able"),
        ("py1", "--unless-tools d1gest --machine x86_64"),
        ("py2", "--unless-tools d1gest --machine aarch64"),
    ]
    assert lending.starts[0]["tools"] == "d1gest"


def test_a_data_set_is_mounted_by_its_name(lending: Lending) -> None:
    """With what a machine opens both of its stores; one that is no more keeps the start waiting."""
    here = Spot(lending.node.offer.cloud or lending.node.offer.provider, lending.node.offer.region)
    places = {"s3://src": Spot("afar", "r9"), "s3://east": here}
    sets = {"corpus": DataSet("s3://src/c", ("s3://east/c",), 5_000_000, {"afar": 90_000})}
    loans = CredentialLeases(
        lambda url: StoreAccess(url, "aws", keys=url.startswith("s3://src")),
        lambda _url: None,
        lambda url: {**OPTIONS, "of": url},
        Link(lending.bank),
        lambda _job: job_keys(),
        lending.stage.clock,
        lambda: (places, ()),
        lambda: sets,
    )
    job = lending.stage.store.jobs.find("j1")
    assert job is not None
    wants = replace(job, spec=changed(job.spec, buckets=(Bucket("/d", "dataset://corpus"),)))
    [found] = loans.buckets(wants, lending.node)
    assert (found.target, found.url, found.near) == ("/d", "s3://src/c", "s3://east/c")
    assert (found.microusd_per_gb, found.max_microusd) == (90_000, 5_000_000)
    assert found.options == {**OPTIONS, "of": "s3://src/c"}
    assert found.near_options == {"region": "r", "of": "s3://east/c"}, "no key of ours"
    cached = Bucket("/d", "dataset://corpus", mode=MountMode.MOUNT_CACHED, cache_bytes=9)
    [again] = loans.buckets(replace(job, spec=changed(job.spec, buckets=(cached,))), lending.node)
    assert again == replace(found, mode=MountMode.MOUNT_CACHED, cache_bytes=9)
    sets.clear()
    with pytest.raises(StoreUnavailableError, match=r"add \[datasets.corpus\] again"):
        loans.buckets(wants, lending.node)
