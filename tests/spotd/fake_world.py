"""A small world around the real loop: a store, a clock that is moved by hand, a toy cloud and toy
machines that keep the contracts of the port and of the link, with the real fencing at HEAD.

The daemon's part can be stopped for good at any boundary and started again; clouds and machines go
on, as they would.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from providers.base import (
    EXPIRES_TAG,
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Leftover,
    Notice,
    Offer,
    OfferRequest,
    Pending,
    ProviderError,
)
from providers.stores.base import ObjectStore
from providers.stores.local import LocalStore
from spotd import wire
from spotd.act.effects import DaemonCondition, EffectContext, JobStores
from spotd.act.node_link import LinkError
from spotd.base.clock import ListeningSince
from spotd.daemon.reconcile import Boundary, Steps, claim_due, one_effect, one_pass
from spotd.domain.job import Job
from spotd.domain.market import Timing
from spotd.domain.node import Node
from spotd.domain.plan import Effect
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.observe.clouds import InstanceSurvey
from spotd.security.secrets import JobKeys
from spotd.store.interface import Store
from spotd.store.journal import JournalBatch
from spotd.store.sql_store import open_store
from spotd.wire import AgentConfig, Command, JournalEntry, Manifest, Reply
from tests.fixtures.tables import with_tables
from tests.sim.memory_store import MemoryStore
from tests.spotd.store import build
from trainer.fence import Fence, FencedError

NOW = build.NOW
TICK_S = 0.25
FOLLOWED = (NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING)


class Killed(Exception):
    """The daemon stopped for good at this boundary."""


class HandClock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self._now_us = NOW

    def now_us(self) -> int:
        return self._now_us

    def monotonic_s(self) -> float:
        return self._now_us / S

    def sleep(self, seconds: float) -> None:
        self._now_us += int(seconds * S)


@cache
def job_keys() -> JobKeys:
    """The same for every job: what they are does not matter here."""
    return JobKeys.create(random.Random(1).randbytes)


@dataclass
class Machine:
    """One instance, with its agent and its training program once they were started."""

    instance: Instance
    request: LaunchRequest
    commits: ObjectStore
    goal: Callable[[], int | None]  # the job's last step; None: there is no end yet
    agent: AgentConfig | None = None
    journal: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    claim: str = ""
    claim_at_us: int = 0  # when it may claim in any case
    fence: Fence | None = None
    step: int = 0
    leaving: bool = False
    deadline_us: int = 0  # of a notice
    exited: int | None = None
    ended_at_us: int = 0
    hung: bool = False  # the cloud says that it runs, and nothing else does

    @property
    def alive(self) -> bool:
        return self.instance.state is InstanceState.RUNNING

    def say(self, kind: str, /, **data: Any) -> None:
        self.journal.append((kind, data))

    def hear(self, command: Command, now_us: int) -> None:
        """A command of the daemon; each is idempotent."""
        data = command.data
        if command.name == wire.START:
            if not self.claim:
                self.say(wire.STARTED)
                self.say(wire.READY)
                self.claim_at_us = now_us + int(float(data["claim_deadline_s"]) * S)
            self.claim = wire.CLAIM_NOW if self.claim == wire.CLAIM_NOW else str(data["claim"])
        elif command.name in (wire.RELEASE, wire.DRAIN):
            self.leaving = True
        elif command.name == wire.SAVE and self.fence is not None:
            self._commit(released=False)

    def live(self, now_us: int) -> None:
        """What happens on the machine by itself until now."""
        if not self.alive or self.agent is None or not self.claim or self.exited is not None:
            return
        if self.hung:
            return
        try:
            if self.fence is None:
                self._try_claim(now_us)
            elif self.leaving or 0 < self.deadline_us <= now_us + 5 * S:
                self._commit(released=True)
                self.say(wire.RELEASED, step=self.step, manifest="")
                self._exit(wire.EXIT_RELEASED)
            else:
                self._train()
        except FencedError:
            self._exit(wire.EXIT_FENCED)

    def _try_claim(self, now_us: int) -> None:
        assert self.agent is not None
        who = (self.agent.job_id, self.agent.generation, self.agent.token)
        fence = Fence(self.commits, *who, make_nonce=nonce)
        if self.claim != wire.CLAIM_NOW and now_us < self.claim_at_us:
            left_s = (self.claim_at_us - now_us) / S
            asked = iter([(self.claim, left_s)])
            try:
                fence.wait_claimable(lambda: next(asked), 0.0, sleep=lambda _: None)
            except StopIteration:
                return  # not yet
        head = fence.claim()
        self.fence = fence
        self.step = head.current.step if head.current else 0
        self.say(wire.CLAIMED, step=self.step, manifest="")
        if head.final:
            self._exit(wire.EXIT_FINISHED)

    def _train(self) -> None:
        first, self.step = self.step + 1, self.step + 10
        self.say(wire.PROGRESS, from_step=first, to_step=self.step, tokens=10, busy_s=1.0)
        goal = self.goal()
        if goal is not None and self.step >= goal:
            self._commit(released=True, final=True)
            self._exit(wire.EXIT_FINISHED)

    def _commit(self, *, released: bool, final: bool = False) -> None:
        assert self.fence is not None
        assert self.agent is not None
        job, generation = self.agent.job_id, self.agent.generation
        manifest = Manifest(job, generation, self.step, 0, 1, final=final)
        head = self.fence.commit(manifest, released=released)
        assert head.current is not None
        self.say(
            wire.CHECKPOINT,
            step=self.step,
            manifest=head.current.manifest,
            released=released,
            final=final,
        )

    def _exit(self, code: int) -> None:
        self.say(wire.EXITED, code=code)
        self.exited = code


_NONCES = itertools.count(1)


def nonce() -> str:
    return f"{next(_NONCES):016x}"


class ToyCloud:
    """Keeps the port's contract: idempotent by token, complete listings. `fail` makes verbs fail:
    an error of `before` is raised instead of the call, one of `after` instead of its answer."""

    local = False
    watcher = "aws"
    limits_life = True
    power_off = ()
    prepared_file = ""
    visibility_s = 0.0

    def __init__(
        self, name: str, clock: HandClock, commits: ObjectStore, goal: Callable[[], int | None]
    ) -> None:
        self.name = name
        self.on_sale: list[Offer] = []
        self.machines: dict[str, Machine] = {}
        self.left: list[Leftover] = []
        self.consoles: dict[str, str] = {}
        self.creates: Counter[str] = Counter()  # by token
        self.calls: Counter[str] = Counter()
        self.before: dict[str, deque[Exception]] = {}
        self.after: dict[str, deque[Exception]] = {}
        self._clock = clock
        self._commits = commits
        self._goal = goal

    def fail(self, verb: str, *errors: Exception, answer: bool = False) -> None:
        side = self.after if answer else self.before
        side.setdefault(verb, deque()).extend(errors)

    def _call(self, verb: str) -> None:
        self.calls[verb] += 1
        if self.before.get(verb):
            raise self.before[verb].popleft()

    def _answer(self, verb: str) -> None:
        if self.after.get(verb):
            raise self.after[verb].popleft()

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        self._call("offers")
        return list(self.on_sale)

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        self._call("launch")
        known = next((m for m in self.machines.values() if m.request.token == request.token), None)
        if known is None:
            self.creates[request.token] += 1
            known = self._create(request)
        else:
            assert known.request == request, "the same token must carry the same request"
        self._answer("launch")
        return Launched(known.instance.instance_id)

    def _create(self, request: LaunchRequest) -> Machine:
        instance = Instance(
            instance_id=f"i-{self.name}-{len(self.machines) + 1}",
            token=request.token,
            tags=request.tags,
            state=InstanceState.RUNNING,
            region=request.region,
            zone=request.zone,
            instance_type=request.instance_type,
            capacity_type=request.capacity_type,
            host="127.0.0.1",
            private_host=f"10.0.0.{len(self.machines) + 1}",
            port=22,
            ssh_user="spotd",
            launched_at_us=self._clock.now_us(),
        )
        machine = Machine(instance, request, self._commits, self._goal)
        self.machines[instance.instance_id] = machine
        return machine

    def end(self, instance_id: str) -> None:
        """The machine is no more, by whosever doing."""
        machine = self.machines[instance_id]
        machine.instance = replace(machine.instance, state=InstanceState.TERMINATED)
        machine.ended_at_us = machine.ended_at_us or self._clock.now_us()

    def read_serial_console(self, instance_id: str) -> str:
        self._call("console")
        return self.consoles.get(instance_id, "")

    def terminate(self, instance_id: str) -> None:
        self._call("terminate")
        if instance_id in self.machines and self._shown(self.machines[instance_id]):
            self.end(instance_id)  # an id that is not known yet is success, too
        self._answer("terminate")

    def list(self) -> Sequence[Instance]:
        self._call("list")
        old_us = self._clock.now_us() - 3600 * S
        listed = [
            machine.instance
            for machine in self.machines.values()
            if self._shown(machine) and (machine.alive or machine.ended_at_us > old_us)
        ]
        self._answer("list")
        return listed

    def _shown(self, machine: Machine) -> bool:
        shown_us = machine.instance.launched_at_us + int(self.visibility_s * S)
        return self._clock.now_us() >= shown_us

    def notices(self) -> Sequence[Notice]:
        self._call("notices")
        return []

    def leftovers(self) -> Sequence[Leftover]:
        self._call("leftovers")
        return list(self.left)

    def discard(self, leftover_id: str) -> None:
        self._call("discard")
        self.left = [left for left in self.left if left.leftover_id != leftover_id]

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        self._call("renew")
        machine = self.machines.get(instance_id)
        if machine is not None and machine.alive:
            until_us = max(machine.instance.expires_at_us, expires_at_us)
            tags = {**machine.instance.tags, EXPIRES_TAG: str(until_us // S)}
            machine.instance = replace(machine.instance, tags=tags)
        self._answer("renew")

    @property
    def alive(self) -> Mapping[str, Machine]:
        return {i: m for i, m in self.machines.items() if m.alive}


class ToyLink:
    """SSH to the toy machines."""

    def __init__(self, clouds: Mapping[str, ToyCloud], clock: HandClock) -> None:
        self._clouds = clouds
        self._clock = clock
        self.said: Counter[str] = Counter()

    def _machine(self, node: Node) -> Machine:
        machine = self._clouds[node.offer.provider].machines.get(node.instance_id)
        if machine is None or not machine.alive or machine.hung:
            raise LinkError("the machine does not answer")
        return machine

    def boot(self, node: Node, keys: JobKeys, config: AgentConfig, deadline_s: float) -> None:
        machine = self._machine(node)
        self.said["boot"] += 1
        if machine.agent is None:
            machine.agent = config
            machine.say(wire.HELLO)

    def put_package(
        self, node: Node, keys: JobKeys, digest: str, source: ObjectStore, deadline_s: float
    ) -> None:
        self._machine(node)

    def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply:
        machine = self._machine(node)
        self.said[command.name] += 1
        if machine.agent is None:
            return Reply(False, "no agent runs here")
        machine.hear(command, self._clock.now_us())
        return Reply(True)


class Stage:
    """One daemon over two toy clouds. `run` plays until a condition holds."""

    def __init__(self, folder: Path, url: str = "", store: Store | None = None) -> None:
        self.folder = folder
        self.goal: int | None = 60
        self.tick_s = TICK_S
        self.clock = HandClock()
        self.commits = LocalStore(folder / "commits")
        self.clouds = {
            name: ToyCloud(name, self.clock, self.commits, lambda: self.goal)
            for name in ("aws", "gcp")
        }
        self.clouds["aws"].on_sale = [build.offer("aws-1a", 10)]
        self.clouds["gcp"].on_sale = [build.offer("gcp-1a", 12)]
        self.link = ToyLink(self.clouds, self.clock)
        self.timing = Timing()
        self.passes = 0
        self.boundaries: list[Boundary] = []
        self.kill_at: int | None = None  # the number of the boundary
        self.queue: deque[Effect] = deque()
        self.store: Store = store or open_store(
            url or with_tables(folder / "spotd.db"),
            now=self.clock.now_us,
            notify=lambda: None,
            deployment_factory=lambda: "d0",
        )
        self.world: EffectContext
        self.start()

    # --- the daemon's life

    def start(self) -> None:
        """A new daemon on what the last one left in the database. It may keep the connection: what
        a store remembers by itself is a cache, and opening one takes as long as a whole story."""
        store: Store = self.store
        self.survey = InstanceSurvey(store, self.clouds, self.clock)
        self.listening = ListeningSince(self.clock)
        self.world = EffectContext(
            store=store,
            providers=self.clouds,
            link=self.link,
            packages=self.commits,
            clock=self.clock,
            deployment=self.store.deployment.id(),
            survey=self.survey.survey,
            keys=lambda _job: job_keys(),
            secrets=lambda _job: {},
            job_stores=JobStores(open=lambda _url: self.commits, options=lambda _url: {}),
            condition=DaemonCondition(
                started_at_us=self.clock.now_us(),
                listening_since=self.listening.since_us,
                answering_since=self.survey.answering_since,
            ),
        )
        self.queue.clear()
        for name, cloud in self.clouds.items():
            self.store.market.record_offers(name, cloud.on_sale, self.clock.now_us())
        self.store.jobs.mark_due(sorted({node.job_id for node in self.store.nodes.active()}))

    def restart(self, after_s: float = 1.0) -> None:
        """What was in memory is gone."""
        self.clock.sleep(after_s)
        self.start()

    def forget(self) -> None:
        """Hours pass: no refusal is remembered, and what happens next is a story of its own."""
        past_s = self.clock.monotonic_s() % 10  # the periodic duties come as they came before
        self.clock.sleep(8 * 3600 - past_s)
        self.boundaries.clear()
        self.kill_at = None
        self.passes = 0
        self.start()

    def step(self, steps: Steps) -> None:
        """Drain, unless the daemon is to die here: then it is never resumed."""
        for boundary in steps:
            number = len(self.boundaries)
            self.boundaries.append(boundary)
            if number == self.kill_at:
                steps.close()
                raise Killed

    def turn(self) -> None:
        """Everything that is due now, then a moment passes."""
        for job_id in claim_due(self.world, "me", 16):
            self.passes += 1
            self.step(one_pass(self.world, self.timing, job_id, self.queue.append))
        while self.queue:
            self.step(one_effect(self.world, self.queue.popleft()))
        self.pass_time()

    def pass_time(self) -> None:
        """Machines live, their journals arrive, the periodic duties run."""
        self.clock.sleep(self.tick_s)
        now_us = self.clock.now_us()
        for cloud in self.clouds.values():
            for machine in cloud.machines.values():
                machine.live(now_us)
                if machine.alive and 0 < machine.deadline_us <= now_us:
                    cloud.end(machine.instance.instance_id)
        self.follow()
        if now_us % (10 * S) < self.tick_s * S:
            self.store.nodes.mark_silent_due(now_us - int(self.timing.suspect_after_s * S))
            for name in self.clouds:
                try:
                    self.survey.sweep(name, self.duty(f"survey:{name}"))
                except ProviderError:
                    continue

    def duty(self, name: str) -> Store:
        """The store of who holds that duty: we do, from now on."""
        epoch = self.store.leases.take(name, "stage", self.clock.now_us, 20 * S)
        assert epoch is not None
        return self.store.fenced(name, epoch)

    def follow(self) -> None:
        """The follower's part: new lines of every journal, once each."""
        now_us = self.clock.now_us()
        for node in self.store.nodes.active():
            machine = self.clouds[node.offer.provider].machines.get(node.instance_id)
            if machine is None or node.state not in FOLLOWED or not node.startup.booted_at_us:
                continue
            if not machine.alive or machine.hung:
                if not node.agent.link_down_at_us:
                    self.store.nodes.record_link(node.id, now_us)
                continue
            fresh = enumerate(
                machine.journal[node.agent.journal_seq :], start=node.agent.journal_seq + 1
            )
            lines = [JournalEntry(seq, now_us, node.generation, k, d) for seq, (k, d) in fresh]
            self.store.journal.record([JournalBatch(node.id, tuple(lines), now_us)])
        self.listening.listened()

    def run(self, until: Callable[[Stage], object], limit_s: float = 300.0) -> None:
        """Play until the condition holds, and once through a death where one was asked for."""
        end_us = self.clock.now_us() + int(limit_s * S)
        while not until(self):
            assert self.clock.now_us() < end_us, self.told()
            try:
                self.turn()
            except Killed:
                self.restart()

    # --- what the story needs

    def submit(self, job_id: str = "j1", **fields: Any) -> Job:
        spec = build.spec(job_id, **fields)
        return self.store.jobs.submit(build.submission(job_id, spec=spec), self.clock.now_us())

    def job(self, job_id: str = "j1") -> Job:
        found = self.store.jobs.find(job_id)
        assert found is not None
        return found

    def nodes(self, job_id: str, *states: NodeState) -> list[Node]:
        """The job's nodes, oldest first; with `states` only those in one of them."""
        found = self.store.nodes.of_job(job_id)
        return [node for node in found if not states or node.state in states]

    def machine(self, node: Node) -> Machine:
        return self.clouds[node.offer.provider].machines[node.instance_id]

    def warn(self, node: Node, seconds: float = 120.0) -> None:
        """The cloud's notice reaches the node."""
        machine = self.machine(node)
        machine.deadline_us = self.clock.now_us() + int(seconds * S)
        machine.say(wire.NOTICE, notice_id="n1", kind="preempt", remaining_s=seconds)

    def strike(self, node: Node) -> None:
        """The machine is gone, and nobody said so."""
        self.clouds[node.offer.provider].end(node.instance_id)

    def creates(self, node: Node) -> int:
        """How many machines the cloud ever made for the node."""
        return self.clouds[node.offer.provider].creates[node.token]

    def alive(self) -> list[str]:
        """Instances that cost money."""
        return [i for cloud in self.clouds.values() for i in cloud.alive]

    def over(self, job_id: str) -> bool:
        """The job has ended and nothing of it is left."""
        left = [n for n in self.nodes(job_id) if n.state is not NodeState.GONE]
        return self.job(job_id).outcome is not None and not left

    def told(self) -> str:
        """The record, for a failed test."""
        rows = self.store.events.rows(None)
        at = [f"{(row.at_us - NOW) / S:8.2f} {row.event.kind}: {row.event.text}" for row in rows]
        return "\n".join(at[-40:])

    def close(self) -> None:
        self.store.close()


def stages(folder: Path) -> Iterator[Callable[..., Stage]]:
    """For a fixture: makes stages below `folder`, and closes them. Their store is in memory, one
    that all tests of stores hold to what SQL does, and that costs a tenth of it; or SQLite."""
    opened: list[Stage] = []

    def make(*, sql: bool = False) -> Stage:
        home = folder / f"stage-{len(opened)}"
        home.mkdir()
        opened.append(Stage(home, store=None if sql else MemoryStore("d0", lambda: None)))
        return opened[-1]

    yield make
    for stage in opened:
        stage.close()
