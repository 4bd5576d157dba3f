"""The real API on a real socket over a real SQLite store; the clouds and nodes are played by hand.

Times are real times minus what the story needs, so that ages come out the same in every run.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from providers.base import CapacityType, Instance, InstanceState, Leftover, LeftoverKind, Offer
from providers.catalogs.egress import first_tier_prices
from providers.catalogs.places import places
from providers.catalogs.storage import first_tier_storage
from providers.iam.policy import PolicyFacts
from providers.readiness import CapacityNeed, Finding
from providers.stores import open_store as open_objects
from providers.stores.base import ObjectStore
from spotd.act.node_link import LinkError
from spotd.act.ssh_access import SshAccess
from spotd.api.http.app import make_app
from spotd.api.http.permissions import Permissions
from spotd.api.http.server import Server, serve
from spotd.api.request.context import (
    AlertServices,
    ApiContext,
    CloudServices,
    ConfiguredSettings,
    DaemonStatus,
    ProviderInfo,
    StorageServices,
    UserAccess,
)
from spotd.base.live_reports import LiveReport
from spotd.domain.datasets import DataSet
from spotd.domain.events import Event
from spotd.domain.fast_replace import changed
from spotd.domain.job import Attempt
from spotd.domain.market import Market
from spotd.domain.node import EffectKind, Node
from spotd.domain.plan import AddNode, Change, ChangeJob, ChangeNode, OpenAttempt, Plan
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.stored_logs import write_end
from spotd.domain.units import S
from spotd.money.approval import ADMINS, Approval
from spotd.money.budget import Budget
from spotd.observe.log_shipper import stream_name
from spotd.planner.core.orphan_policy import HeldLeftover, HeldMachine, OrphanAction
from spotd.security.secrets import JobKeys, rotate, seal_job_keys, seal_secrets, unlock
from spotd.spec import CheckpointDefaults, KnownNames, load
from spotd.store.backup import back_up
from spotd.store.commit import CommitStatus
from spotd.store.interface import Store
from spotd.store.jobs import Submission
from spotd.store.journal import JournalBatch
from spotd.store.sql_store import open_store
from spotd.wire import JournalEntry, LogEnd
from tests.fixtures.memory import MEMORY
from tests.fixtures.tables import with_tables

SPOT = Offer(
    "aws",
    "us-east-1",
    "us-east-1a",
    "p5.48xlarge",
    CapacityType.SPOT,
    19_930_000,
    55_040_000,
    accelerator="H100",
    accelerator_count=8,
    cpus=192,
    memory_gib=2048,
    cloud="aws",
)
OFFERS = (
    SPOT,
    replace(SPOT, capacity_type=CapacityType.ON_DEMAND, price_microusd_per_h=55_040_000),
    replace(
        SPOT,
        provider="toy-gcp",
        region="us-central1",
        zone="us-central1-a",
        instance_type="a3-highgpu-8g",
        price_microusd_per_h=25_500_000,
        list_microusd_per_h=51_000_000,
        local=True,
        cloud="gcp",
    ),
    replace(SPOT, zone="us-east-1b", price_microusd_per_h=30_000_000),
)
JOB_FILE = """\
name: gpt
resources:
  accelerators: H100:8
run: python train.py
spotd:
  checkpoint: {engine: spotd, every_steps: 100}
"""


class CountingIds:
    """Ids that are the same in every run."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def random_bytes(self, count: int) -> bytes:
        word = next(self._count).to_bytes(4, "big")
        return (word * (count // 4 + 1))[:count]

    def job_id(self) -> str:
        return f"jjob{next(self._count):06d}"

    def token(self) -> str:
        return f"{next(self._count):032x}"


class StoppedClock:
    """Stands at the moment when the test began, so that running costs come out the same."""

    def __init__(self) -> None:
        self._now_us = time.time_ns() // 1000

    def now_us(self) -> int:
        return self._now_us

    def stand_in_mid_month(self) -> None:
        """Stand at noon of a 15th, so that a story of some days is in one month."""
        now = datetime.fromtimestamp(self._now_us / S, UTC)
        noon = now.replace(day=15, hour=12, minute=0, second=0, microsecond=0)
        self._now_us = int(noon.timestamp() * S)

    def go_on(self, seconds: float) -> None:
        """It stands that much later."""
        self._now_us += int(seconds * S)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Hosts:
    """Machines that let users in: (node id, user) -> public keys. `away` ones do not answer."""

    def __init__(self) -> None:
        self.inside: dict[tuple[str, str], list[str]] = {}
        self.away: set[str] = set()

    def admit(self, node: Node, _: JobKeys, user: str, public_key: str, __: float) -> None:
        self._check(node)
        self.inside.setdefault((node.id, user), []).append(public_key)

    def dismiss(self, node: Node, _: JobKeys, user: str, __: float) -> None:
        self._check(node)
        self.inside.pop((node.id, user), None)

    def _check(self, node: Node) -> None:
        if node.id in self.away:
            raise LinkError("the machine does not answer")


class Rig:
    """One daemon's API. `alerts` answers test messages; `close` ends everything."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[str, str]] = {}  # of stores, by what URLs begin with
        self.shards: tuple[str, ...] = ()
        self.datasets: dict[str, DataSet] = {}
        # A socket path must be short, and pytest's folders are not.
        self.folder = Path(tempfile.mkdtemp(prefix="sp-", dir=MEMORY or "/tmp"))
        self.socket = self.folder / "spotd.sock"
        self.clock = StoppedClock()
        self.ids = CountingIds()
        self._sql = open_store(
            with_tables(self.folder / "db.sqlite"),
            now=self.clock.now_us,
            notify=lambda: None,
            deployment_factory=lambda: "d0",
        )
        self.store: Store = self._sql
        (self.folder / "spotd-key").write_bytes(b"k" * 32)
        (self.folder / "spotd-key").chmod(0o600)
        unlock(self.store.secrets, self.folder, {}, bytes)
        self.vault = unlock(self.store.secrets, self.folder, {}, self.ids.random_bytes)
        self.objects: ObjectStore = open_objects(f"file://{self.folder}/objects", {})
        self.shared = True  # of that folder: these machines are processes here
        self.checkpoint_store = f"file://{self.folder}/ckpt"
        self.open_store: Callable[[str], ObjectStore] = open_objects
        self.alerts: dict[str, str] = {"default": ""}
        self.silent_providers: dict[str, str] = {}
        self.contested = ""
        self.findings: dict[str, list[Finding]] = {}
        self.needs: Mapping[str, Sequence[CapacityNeed]] = {}  # that the clouds were examined for
        self.held: list[HeldMachine] = []
        self.held_leftovers: list[HeldLeftover] = []
        self.unlisted_providers: list[str] = []
        self.routes = {"default": ("", False)}
        self.reports: list[LiveReport] = []
        self.image_makers = {"aws": "aws"}
        self.configured_images: dict[str, str] = {}
        self.box_microusd_per_h = 0
        self.drill_days = 31.0
        self.budgets: list[Budget] = []
        self.approval = Approval()
        self.overrides = ADMINS
        self.reload: Callable[[], list[str]] = list
        self.authority = Permissions()
        self.hosts = Hosts()
        self.visitors = SshAccess(self.hosts, lambda _job: JobKeys.create(bytes), self.clock)
        stores = ("s3://ours/packages", "s3://ours/runs")
        group = {"subscription_id": "s1", "resource_group": "g1"}
        self.facts = {
            "aws": PolicyFacts("d0", ("us-east-1",), *stores),
            "gcp": PolicyFacts(
                "d0",
                ("us-central1",),
                *stores,
                account={"project": "lab"},
                job_stores=("gs://ours/runs",),
            ),
            "azure": PolicyFacts("d0", ("eastus",), *stores, account=group),
        }
        self.offer_them()
        self.server: Server | None = None
        self._journal: dict[str, itertools.count[int]] = {}

    def context(self) -> ApiContext:
        return ApiContext(
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            vault=self.vault,
            storage=StorageServices(
                objects=self.objects,
                open_store=self.open_store,
                spool_dir=self.folder / "spool",
                back_up=partial(back_up, f"sqlite:///{self.folder / 'db.sqlite'}"),
                is_shared=lambda _url: self.shared,
            ),
            settings=ConfiguredSettings(
                defaults=lambda: CheckpointDefaults(store=self.checkpoint_store),
                known=KnownNames,
                drill_days=lambda: self.drill_days,
                box_microusd_per_h=lambda: self.box_microusd_per_h,
                budgets=lambda: self.budgets,
                approval=lambda: self.approval,
                overrides=lambda: self.overrides,
            ),
            market=self._market,
            clouds=CloudServices(
                providers=lambda: [
                    ProviderInfo("aws", "aws", False),
                    ProviderInfo("toy-gcp", "local", True),
                ],
                policy_facts=self.facts.get,
                silent_providers=lambda: self.silent_providers,
                held=lambda: self.held,
                held_leftovers=lambda: self.held_leftovers,
                unlisted_providers=lambda: self.unlisted_providers,
                check_readiness=self._check_cloud_readiness,
                live_reports=lambda: self.reports,
                image_makers=lambda: self.image_makers,
                configured_images=lambda: self.configured_images,
            ),
            alerts=AlertServices(test=self._test_alert, check_routes=lambda: self.routes),
            users=UserAccess(
                admit=self._admit,
                end_access_of_disabled_users=self._end_access_of_disabled_users,
                is_trusted=lambda uid: uid in self.authority.trusted,
            ),
            rotate_key=lambda: rotate(
                self.store.secrets, self.vault, self.folder, {}, self.ids.random_bytes
            ),
            daemon=DaemonStatus(
                contested=lambda: self.contested,
                owner="this-daemon",
                reload=lambda: self.reload(),  # noqa: PLW0108 - tests replace it
            ),
            metric_records=self._sql.metrics.read,
        )

    def _market(self, now_us: int) -> Market:
        found = self.store.market.load(now_us)
        known = {"countries": places().countries, "operators": places().operators}
        stores = {"places": self.places, "shards": self.shards, "datasets": self.datasets}
        prices = {
            "egress_microusd_per_gb": first_tier_prices(),
            "storage_prices": first_tier_storage(),
        }
        return changed(found, **prices, **stores, **known)

    def _check_cloud_readiness(
        self, needs: Mapping[str, Sequence[CapacityNeed]]
    ) -> Mapping[str, list[Finding]]:
        self.needs = needs
        return self.findings

    def _admit(self, node: Node, user: str, public_key: str) -> None:
        self.visitors.admit(self.store, node, user, public_key)

    def _end_access_of_disabled_users(self) -> Mapping[str, str]:
        return self.visitors.end_access_of_disabled_users(self.store)

    def hold(
        self, ident: str, ago_s: float, why: str, fate: OrphanAction = OrphanAction.HOLD
    ) -> HeldMachine:
        """The sweep found a machine that no job wants, and keeps it."""
        tags = {"spotd-deployment": "d0", "spotd-job": "jold", "spotd-generation": "3"}
        instance = Instance(
            instance_id=ident,
            token=f"t-{ident}",
            tags=tags,
            state=InstanceState.RUNNING,
            region=SPOT.region,
            zone=SPOT.zone,
            instance_type=SPOT.instance_type,
            capacity_type=SPOT.capacity_type,
            launched_at_us=self.ago(ago_s),
        )
        self.held.append(HeldMachine("aws", instance, self.ago(ago_s / 2), fate, why))
        return self.held[-1]

    def hold_disk(
        self, ident: str, ago_s: float, why: str, fate: OrphanAction = OrphanAction.HOLD
    ) -> None:
        """The sweep found a disk that hangs on no machine, and keeps it."""
        tags = {"spotd-deployment": "d0", "spotd-job": "jold", "spotd-generation": "3"}
        disk = LeftoverKind.DISK
        left = Leftover(ident, disk, tags, SPOT.region, SPOT.zone, self.ago(ago_s))
        self.held_leftovers.append(HeldLeftover("aws", left, self.ago(ago_s / 2), fate, why))

    def _test_alert(self, route: str) -> Mapping[str, str]:
        return {name: error for name, error in self.alerts.items() if route in ("", name)}

    def start(self) -> Rig:
        self.server = serve(make_app(self.context(), self.authority), self.socket)
        return self

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    def close(self) -> None:
        self.stop()
        self.store.close()
        shutil.rmtree(self.folder)

    # --- playing

    def ago(self, seconds: float) -> int:
        return self.clock.now_us() - int(seconds * S)

    def offer_them(self, *offers: Offer) -> None:
        for provider in ("aws", "toy-gcp"):
            mine = [offer for offer in offers or OFFERS if offer.provider == provider]
            self.store.market.record_offers(provider, mine, self.clock.now_us())

    def submit(self, name: str = "gpt", ago_s: float = 0, text: str = JOB_FILE) -> str:
        """A job stored `ago_s` ago; returns its id."""
        parsed = load(
            text,
            now_us=self.clock.now_us(),
            defaults=self.context().settings.defaults(),
            secrets={"HF_TOKEN": "hf_very_secret"} if "HF_TOKEN" in text else {},
        )
        job_id = self.ids.job_id()
        keys = JobKeys.create(self.ids.random_bytes)
        submission = Submission(
            job_id=job_id,
            spec=replace(parsed.spec, name=name),
            spec_yaml=parsed.text,
            user="ada",
            request_id=self.ids.token(),
            job_key=seal_job_keys(self.vault, job_id, keys),
            secrets=seal_secrets(self.vault, job_id, parsed.secrets),
        )
        return self.store.jobs.submit(submission, self.ago(ago_s)).id

    def commit(
        self, job_id: str, at_us: int, *changes: Change, events: tuple[Event, ...] = ()
    ) -> None:
        view = self.store.load_view(job_id, at_us)
        assert view is not None
        result = self.store.commit(view, Plan(changes, events, 0, "as the test wants"), at_us)
        assert result.status is CommitStatus.DONE, result.text

    def launch(self, job_id: str, offer: Offer, ago_s: float, rank: int = 0) -> Node:
        """A new generation with one machine that the cloud has given us."""
        at_us = self.ago(ago_s)
        view = self.store.load_view(job_id, at_us)
        assert view is not None
        generation = view.job.generation + (rank == 0)
        node = Node(
            id=f"{job_id}-g{generation}-r{rank}",
            job_id=job_id,
            generation=generation,
            rank=rank,
            candidate=0,
            token=f"t-{job_id}-{generation}-{rank}",
            offer=offer,
            state=NodeState.LAUNCHING,
            requested_at_us=at_us,
        )
        attempt = OpenAttempt(Attempt(job_id, generation, at_us, "test"))
        opening: list[Change] = [attempt, ChangeJob({"generation": generation})] if not rank else []
        text = f"asking for {offer.instance_type} in {offer.provider}/{offer.zone}"
        self.commit(
            job_id, at_us, *opening, AddNode(node), events=(Event("launch", text, node.id),)
        )
        self.store.nodes.record_launched(node.id, f"i-{generation}{rank}", at_us)
        return node

    def change(self, node: Node, ago_s: float, **fields: Any) -> None:
        self.commit(node.job_id, self.ago(ago_s), ChangeNode(node.id, fields))

    def say(self, node: Node, ago_s: float, kind: str, **data: Any) -> None:
        """One line of the node's journal."""
        seq = next(self._journal.setdefault(node.id, itertools.count(1)))
        at_us = self.ago(ago_s)
        entry = JournalEntry(seq, at_us, node.generation, kind, data)
        self.store.journal.record([JournalBatch(node.id, (entry,), at_us)])

    def train(self, node: Node, ago_s: float, until_s: float, first: int, last: int) -> None:
        """The machine boots, claims and trains steps `first` to `last`, ending `until_s` ago with
        a checkpoint."""
        self.change(node, ago_s, state=NodeState.BOOTING, chosen=True)
        self.store.nodes.record_booted(node.id, self.ago(ago_s))
        self.say(node, ago_s, "hello", agent="1", wire=1)
        self.say(node, ago_s, "ready")
        self.say(node, ago_s, "claimed", step=first, manifest="")
        self._report(node, (first + 1, first + 1), ago_s, ago_s)
        self.change(node, ago_s, state=NodeState.RUNNING)
        self._report(node, (first + 2, last), ago_s, until_s)
        manifest = f"jobs/{node.job_id}/g{node.generation}/s{last}"
        self.say(node, until_s, "checkpoint", step=last, manifest=manifest, bytes=3 << 30)

    def _report(self, node: Node, steps: tuple[int, int], ago_s: float, until_s: float) -> None:
        self.say(
            node,
            until_s,
            "progress",
            from_step=steps[0],
            to_step=steps[1],
            losses=[],
            first_at_us=self.ago(ago_s),
            last_at_us=self.ago(until_s),
            tokens=1000,
            busy_s=ago_s - until_s,
        )

    def leave(self, node: Node, ago_s: float, reason: LeaveReason, text: str) -> None:
        """The machine is given back and gone."""
        at_us = self.ago(ago_s)
        fields = {"leave_reason": reason, "leave_text": text, "left_at_us": at_us}
        self.change(node, ago_s, state=NodeState.TERMINATING, **fields)
        self.store.nodes.record_acknowledged(node.id, EffectKind.TERMINATE, at_us - 1)
        self.store.instances.record_listing(node.offer.provider, [], at_us, at_us)
        self.change(node, ago_s, state=NodeState.GONE)

    def address(self, node: Node, host: str, port: int, user: str = "ubuntu") -> None:
        """The cloud lists the machine as running, with an address."""
        instance = Instance(
            instance_id=node.instance_id,
            token=node.token,
            tags={},
            state=InstanceState.RUNNING,
            region=node.offer.region,
            zone=node.offer.zone,
            instance_type=node.offer.instance_type,
            capacity_type=node.offer.capacity_type,
            host=host,
            port=port,
            ssh_user=user,
        )
        now_us = self.clock.now_us()
        self.store.instances.record_listing(node.offer.provider, [instance], now_us, now_us)

    def finish(self, job_id: str, ago_s: float, outcome: Outcome, text: str = "") -> None:
        at_us = self.ago(ago_s)
        fields = {"outcome": outcome, "outcome_text": text, "finished_at_us": at_us}
        self.commit(
            job_id, at_us, ChangeJob(fields), events=(Event("outcome", text or outcome.value),)
        )

    def log(self, node: Node, stream: str, offset: int, data: bytes) -> None:
        """A piece of output, as the follower stores it, and the end of the stream after it."""
        place, end = stream_name(node, stream), offset + len(data)
        self.objects.put(place.piece_key(offset), data)
        self.objects.put(place.end_key, write_end(LogEnd(node.generation, stream, end)))
        self.store.logs.record_offset(node.id, stream, end)


def story(rig: Rig) -> str:
    """A job preempted once: an hour on aws, then three quarters of one on the toy cloud, where it
    trains. Ages are half a minute away from the next whole one. Returns the job's id."""
    job_id = rig.submit(ago_s=6330)
    first = rig.launch(job_id, SPOT, ago_s=6320)
    rig.train(first, ago_s=6270, until_s=2750, first=0, last=1190)
    second = rig.launch(job_id, OFFERS[2], ago_s=2790)
    rig.leave(first, 2720, LeaveReason.PREEMPTED, "preempt notice")
    rig.train(second, ago_s=2730, until_s=930, first=1190, last=1790)
    rig.log(first, "setup", 0, b"installing\n")
    rig.log(first, "rank0", 0, b"step 1 loss 3.2\nstep 1190")
    rig.log(first, "rank0", 25, b" loss 1.9\n")
    rig.log(second, "rank0", 0, b"step 1191 loss 1.9\n")
    return job_id


def crash(rig: Rig, code: int = 1) -> str:
    """A job whose program crashed for good, with last words that would like to steer a terminal."""
    job_id = rig.submit("crashed", ago_s=8130)
    node = rig.launch(job_id, SPOT, ago_s=8120)
    rig.train(node, ago_s=8100, until_s=7500, first=0, last=10)
    tail = "Traceback (most recent call last):\n\x1b[2J\x1b[31mValueError\x1b[0m: no\x07 more data"
    rig.say(node, 7490, "exited", code=code, ranks={"0": 1}, tail=tail)
    rig.leave(node, 7480, LeaveReason.FAILED, "exit code 1")
    rig.finish(job_id, 7470, Outcome.FAILED, "the program crashed with exit code 1")
    return job_id
