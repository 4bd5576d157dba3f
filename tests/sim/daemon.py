"""One daemon of a run: the real loop, pool, duties, follower, survey and delivery, on a `Kernel`.

What is replaced lies outside: the operating system's threads, the clouds, SSH, the bucket, Slack.
Every write to the store and every call to the outside is a boundary, at which the process may
die, freeze, or be overtaken by another daemon.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeVar
from unittest.mock import patch

from providers.base import (
    Instance,
    Launched,
    LaunchRequest,
    Leftover,
    Notice,
    Offer,
    OfferRequest,
    Pending,
    ProviderError,
    UnknownOutcome,
)
from providers.images import Image
from spotd.act.alerts import Delivery
from spotd.act.effects import DaemonCondition, EffectContext, JobStores
from spotd.act.jump_hosts import JumpHosts
from spotd.alert_sinks.base import AlertSink
from spotd.base.clock import ListeningSince, SystemClock
from spotd.config.schedule import Schedule
from spotd.daemon.history_cache import HistoryCache
from spotd.daemon.loop import Loop, run_effect
from spotd.daemon.periodic import PeriodicTasks
from spotd.daemon.pool import Pool
from spotd.domain.market import Timing
from spotd.domain.plan import Plan
from spotd.domain.view import View
from spotd.money.budget import Budget
from spotd.observe.budgets import Budgets
from spotd.observe.clouds import InstanceSurvey
from spotd.observe.nodes import Follower
from spotd.security.secrets import JobKeys, KeyPair
from spotd.store.commit import CommitResult, CommitStatus
from spotd.store.errors import StoreUnavailableError
from spotd.store.interface import Store
from tests.sim.cloud import SimCloud
from tests.sim.faults import Faults
from tests.sim.jump import SimJumpHost, log_in_by
from tests.sim.kernel import Kernel, Process, Task
from tests.sim.link import SimLink, SimWaiting
from tests.sim.machine import SimMachine
from tests.sim.net import Net
from tests.sim.objects import Bucket, BucketClient
from tests.sim.threads import Event, OneByOne, Queue, Threading, ThreadPoolExecutor

T = TypeVar("T")

CALL_S = 10.0  # by the provider port's contract, and what adapters allow themselves
# Slower than in production, and the waits below: a simulated hour is to cost little.
SCHEDULE = Schedule(
    survey_s=45.0,
    offers_s=300.0,
    notices_s=3600.0,
    alerts_s=30.0,
    silence_s=30.0,
    health_s=60.0,
    prune_s=86_400.0,
    lease_s=120.0,
    renew_s=40.0,
)
KEYS = JobKeys(KeyPair("private", "public"), b"seed")
# Of these, while nothing is left to do, every fourth turn is taken: most of a run's second half.
SELDOM = ("survey:", "offers:", "silence", "health")
SELDOM_TURNS = 4
# Reads that nobody else can see: no boundary, and no time.
_READS = frozenset(
    {
        "alerts.due",
        "deployment.id",
        "deployment.quarantine",
        "events.keys",
        "images.rows",
        "jobs.find",
        "jobs.key",
        "jobs.next_wake_us",
        "jobs.owners",
        "jobs.rows",
        "jobs.secrets",
        "jobs.users",
        "leases.newest_us",
        "ledger.segments",
        "load_view",
        "load_views",
        "logs.offsets",
        "market.load",
        "node_history.fleet",
        "nodes.active",
        "nodes.booted",
        "nodes.find",
        "orphans.known",
        "orphans.released_us",
        "progress.recent_throughput",
    }
)


REPOSITORIES = frozenset(Store.__annotations__)


class SimClock(SystemClock):
    """One daemon's clock, on a box whose wall clock may be wrong; its ticks are right."""

    def __init__(self, kernel: Kernel, ahead_us: Callable[[], int]) -> None:
        super().__init__(lambda: (kernel.now_us + ahead_us()) * 1000, lambda: kernel.now_us * 1000)
        self._kernel = kernel
        self._ahead_us = ahead_us
        self._asked = (-1, 0)  # when it was asked last, and how wrong it was then

    def now_us(self) -> int:
        """Within a moment the product's own clock says the same, however often it is asked."""
        asked = (self._kernel.now_us, self._ahead_us())
        if asked == self._asked:
            return self._now_us
        self._asked = asked
        return super().now_us()

    def monotonic_s(self) -> float:
        return self._kernel.now_us / 1e6

    def sleep(self, seconds: float) -> None:
        self._kernel.sleep(seconds)


class CloudClient:
    """`Provider` for one process, over a network."""

    local = False
    visibility_s = 30.0
    limits_life = True
    prepared_file = ""

    def __init__(self, cloud: SimCloud, net: Net, who: str = "daemon") -> None:
        self.name = cloud.name
        self.watcher = "aws"
        # A guest of Azure's that switches itself off is paid for all the same.
        self.power_off = ("poweroff",) if cloud.name != "azure" else ()
        self._who = who
        self._cloud = cloud
        self._net = net

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        shown: Sequence[Offer] | None = None
        try:
            shown = self._call("offers", self._cloud.offers)
        finally:
            self._cloud.unquoted = shown is None
        return shown

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        return self._call("launch", lambda: self._cloud.launch(request))

    def terminate(self, instance_id: str) -> None:
        self._call("terminate", lambda: self._cloud.terminate(instance_id, self._who))

    def list(self) -> Sequence[Instance]:
        shown: Sequence[Instance] | None = None
        try:
            shown = self._call("list", self._cloud.list)
        finally:
            (self._cloud.unanswered.add if shown is None else self._cloud.unanswered.discard)(
                self._who
            )
        return shown

    def notices(self) -> Sequence[Notice]:
        return self._call("notices", self._cloud.notices)

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        self._call("renew", lambda: self._cloud.renew(instance_id, expires_at_us))

    def leftovers(self) -> Sequence[Leftover]:
        if not self._cloud.litters:
            return ()  # its machines end whole
        found = self._call("leftovers", self._cloud.leftovers)
        self._cloud.looks += 1
        return found

    def discard(self, leftover_id: str) -> None:
        self._cloud.looks -= 1  # one that does not arrive is for the next look to repeat
        self._call("discard", lambda: self._cloud.discard(leftover_id))
        self._cloud.looks += 1

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        return self._call("image", lambda: self._cloud.make_image(instance_id, name, tags))

    def images(self) -> Sequence[Image]:
        if not self._cloud.images.made:
            return ()  # nobody bakes in this run
        return self._call("images", self._cloud.list_images)

    def remove_image(self, image_id: str) -> None:
        self._call("remove image", lambda: self._cloud.remove_image(image_id))

    def _call(self, what: str, act: Callable[[], T]) -> T:
        return self._net.call(
            f"{self.name} {what}",
            "cloud",
            act,
            limit_s=CALL_S,
            lost=UnknownOutcome,
            errors=ProviderError,
            reachable=lambda: not self._cloud.out,
        )


class Duty(NamedTuple):
    """A duty as its holder knows it."""

    name: str
    epoch: int


class StoreClient:
    """The store as one daemon sees it: writes are boundaries, and their outcome may be lost."""

    def __init__(
        self, outside: Outside, boundary: Callable[[str], None], duty: Duty | None = None
    ) -> None:
        self._outside = outside
        self._boundary = boundary
        self._duty = duty
        self._store = outside.store.fenced(duty.name, duty.epoch) if duty else outside.store
        self._fenced: dict[str, tuple[int, StoreClient]] = {}  # by duty, the last epoch's

    def fenced(self, duty: str, epoch: int) -> StoreClient:
        """See Store.fenced."""
        known = self._fenced.get(duty)
        if known is None or known[0] != epoch:
            client = StoreClient(self._outside, self._boundary, Duty(duty, epoch))
            known = self._fenced[duty] = epoch, client
        return known[1]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in REPOSITORIES:
            found = RepositoryClient(self, name, found)
        else:
            found = partial(self.call, name, found)
        self.__dict__[name] = found
        return found

    def commit(self, view: View, plan: Plan, now_us: int) -> CommitResult:
        return self.commit_many([(view, plan)], now_us)[0]

    def commit_many(self, plans: Sequence[tuple[View, Plan]], now_us: int) -> list[CommitResult]:
        """What was decided on is told beside what it was written over."""
        out = self._outside
        stored = dict[str, int]()

        def write() -> list[CommitResult]:
            for view, _ in plans:
                job = out.store.jobs.find(view.job.id)
                stored[view.job.id] = job.version if job is not None else -1
            out.decisions += 1
            results = out.store.commit_many(plans, now_us)
            for (view, plan), result in zip(plans, results, strict=True):
                if result.status is CommitStatus.DONE:
                    out.on_committed(view, plan, stored[view.job.id], now_us)
                    for event in plan.events:
                        out.comment(f"{view.job.id} {event.kind}: {event.text}")
            return results

        written: list[CommitResult] = self._write("commit_many", write)
        return written

    def call(self, name: str, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """Call a method of the store: `name` is its own, behind its repository's."""
        if name == "leases.check":
            self._read(method, *args, **more)
            if self._duty is not None:
                self._outside.on_duty_held(self._duty)
            return None
        if name in _READS:
            return self._read(method, *args, **more)
        return self._write(name, method, *args, **more)

    def _read(self, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if self._outside.store_away:
            raise StoreUnavailableError("the database does not answer")
        return method(*args, **more)

    def _write(self, name: str, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
        out = self._outside
        self._boundary(f"before {name}")
        if out.store_away:
            raise StoreUnavailableError("the database does not answer")
        result = method(*args, **more)
        if name in ("leases.take", "leases.take_many"):
            taken = result if name == "leases.take_many" else {args[0]: result}
            for duty, epoch in taken.items():
                if epoch is not None:
                    out.on_duty_taken(Duty(duty, epoch), args[3])
        elif self._duty is not None:
            out.on_duty_write(self._duty, name)
        if out.faults.strikes("commit_unknown"):
            raise StoreUnavailableError("the connection was lost at COMMIT")
        self._boundary(f"after {name if result or name != 'jobs.claim' else 'a look'}")
        return result


class RepositoryClient:
    """One repository of a StoreClient."""

    def __init__(self, client: StoreClient, name: str, repository: object) -> None:
        self._client, self._name, self._repository = client, name, repository

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._repository, name)
        found = partial(self._client.call, f"{self._name}.{name}", method)
        self.__dict__[name] = found
        return found


class Outside(Protocol):
    """What every daemon of a run shares."""

    decisions: int  # that may have been written: each may change who is chosen, and what has ended

    @property
    def kernel(self) -> Kernel: ...

    @property
    def faults(self) -> Faults: ...

    @property
    def store(self) -> Store: ...

    @property
    def store_away(self) -> bool: ...

    @property
    def clouds(self) -> Mapping[str, SimCloud]: ...

    @property
    def bucket(self) -> Bucket: ...

    @property
    def machines(self) -> Mapping[str, SimMachine]: ...

    @property
    def jumps(self) -> Mapping[str, SimJumpHost]: ...

    @property
    def people(self) -> AlertSink: ...

    @property
    def daemons(self) -> Sequence[SimDaemon]: ...

    @property
    def timing(self) -> Timing: ...

    @property
    def months(self) -> Sequence[Budget]: ...

    def boundary(self, daemon: SimDaemon, what: str) -> None:
        """`daemon` stands there: it may die, or somebody may look."""

    def comment(self, what: str) -> None:
        """What stands behind what happened."""

    def on_committed(self, view: View, plan: Plan, stored: int, now_us: int) -> None:
        """A decision of `now_us` was accepted when `stored` was its job's version."""

    def on_duty_taken(self, duty: Duty, ttl_us: int) -> None:
        """Somebody has this duty, from now for that long (0: let go)."""

    def on_duty_write(self, duty: Duty, what: str) -> None:
        """The store took a write of who says to hold it."""

    def on_duty_held(self, duty: Duty) -> None:
        """The store said that what cannot be taken back may be begun."""


class SimDaemon:
    """A control box and the daemon on it, which may be killed and started again."""

    def __init__(self, outside: Outside, name: str) -> None:
        self.name = name
        self.ahead_us = 0  # how wrong the box's wall clock is
        self.set_right_us = 0  # when it was last
        self.lost = False  # its box is gone for good
        self.process = Process(name, alive=False)
        self.world: EffectContext  # what the living one works with
        self.duties: PeriodicTasks
        self._loop: Task | None = None  # its thread that decides
        self._loop_held_until_us = 0
        self._deaf_until_us = 0  # what nodes said is not recorded before
        self.starts = 0
        self._outside = outside
        self._pokes: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin a new life; nothing is remembered but what is in the store."""
        if self.lost:
            return
        self.starts += 1
        self.ahead_us = 0  # it waits for the time to be right: time-sync.target
        self.process = Process(f"{self.name}/{self.starts}")
        self._loop, self._loop_held_until_us, self._deaf_until_us = None, 0, 0
        self._pokes = []
        self._outside.kernel.spawn(self.process, self._main)

    def start_again(self) -> None:
        """What systemd does, if it has not done so already."""
        if not self.process.alive:
            self.start()

    def awake(self, now_us: int) -> bool:
        """Whether it lives and is not frozen."""
        return self.process.alive and self.process.frozen_until_us <= now_us

    def stall(self, seconds: float, at: str = "") -> None:
        """Its thread that stands at that boundary stands still."""
        kernel = self._outside.kernel
        until_us = kernel.now_us + int(seconds * 1e6)
        if kernel.current is self._loop:
            self._loop_held_until_us = until_us
        if at.endswith("journal.record"):
            self._deaf_until_us = until_us
        kernel.sleep(seconds)

    def decides(self, now_us: int) -> bool:
        """Whether nothing keeps its loop from deciding."""
        held = self._loop is None or self._loop_held_until_us > now_us
        return self.awake(now_us) and not held and not self._outside.store_away

    def follows(self, now_us: int) -> bool:
        """Whether nothing keeps it from recording what nodes say, and from deciding on it."""
        return self.decides(now_us) and self._deaf_until_us <= now_us

    def poke(self) -> None:
        """Something was recorded that makes a job due."""
        if self.process.alive:
            for poke in self._pokes:
                poke()

    def _client(self, boundary: Callable[[str], None]) -> StoreClient:
        return StoreClient(self._outside, boundary)

    def _clock(self) -> SimClock:
        return SimClock(self._outside.kernel, lambda: self.ahead_us)

    def _newest_us(self) -> int:
        """What is on record; a daemon whose database is away is started until it is there."""
        while self._outside.store_away:
            self._outside.kernel.sleep(2.0)
        return self._outside.store.leases.newest_us()

    def _main(self) -> None:
        out = self._outside
        boundary = partial(out.boundary, self)
        net = Net(out.kernel, out.faults, boundary)
        store: Any = self._client(boundary)
        providers: Any = {name: CloudClient(cloud, net) for name, cloud in out.clouds.items()}
        objects = BucketClient(out.bucket, net, lambda: True)
        clock = self._clock()
        ways = JumpHosts({name: jump.host for name, jump in out.jumps.items()}, clock)
        link: Any = SimLink(out.kernel, net, out.machines.get, ways.dial)
        clock.not_before(self._newest_us() + 1)
        if len(out.daemons) == 1:
            out.store.leases.release_all()  # as on SQLite: nobody else has the file open
        listening = ListeningSince(clock)
        owner = self.process.name
        survey = InstanceSurvey(store, providers, clock)
        world = self.world = EffectContext(
            store=store,
            providers=providers,
            link=link,
            packages=objects,
            clock=clock,
            deployment=out.store.deployment.id(),
            survey=survey.survey,
            keys=lambda _job: KEYS,
            secrets=lambda _job: {},
            job_stores=JobStores(open=lambda _url: objects, options=lambda _url: {}),
            condition=DaemonCondition(
                started_at_us=clock.now_us(),
                listening_since=listening.since_us,
                answering_since=survey.answering_since,
                reached_since=ways.reached_since,
                unreached=ways.unreached,
            ),
            past=HistoryCache(store).at,
        )
        pool = Pool(providers, partial(run_effect, world))
        loop = Loop(world, out.timing, owner, pool.submit, lambda: None)
        waiting: Any = SimWaiting(out.kernel)
        follower = Follower(
            store, link, lambda _job: KEYS, objects, clock, listening.listened, waiting
        )
        delivery = Delivery({"default": out.people}, clock)
        duties = self.duties = PeriodicTasks(
            store, providers, survey, delivery.deliver, clock, owner, out.timing, SCHEDULE
        )
        if out.months:
            duties.add(Schedule.budgets_s, "budgets", Budgets(lambda: out.months, clock).keep)
        self._pokes = [loop.poke, follower.poke]
        self._loop = out.kernel.spawn(self.process, loop.run)
        ways.start()
        duties.start()
        follower.start()


@dataclass(frozen=True)
class _Job:
    id: str
    run: Callable[[], None]
    seconds: float
    at_once: bool
    soon: Event

    def modify(self, **_fields: object) -> None:
        """It is to run now."""
        self.soon.set()


class _Scheduler:
    """In place of APScheduler: each job at its interval, one run of it at a time."""

    def __init__(self, kernel: Kernel, quiet: Callable[[], bool]) -> None:
        self._kernel = kernel
        self._quiet = quiet
        self._jobs: list[_Job] = []
        self.running = False

    def add_job(
        self, run: Callable[[], None], _trigger: str, seconds: float, **more: object
    ) -> None:
        soon = Threading(self._kernel).Event()
        self._jobs.append(_Job(str(more["id"]), run, seconds, "next_run_time" in more, soon))

    def get_jobs(self) -> list[_Job]:
        return self._jobs

    def add_executor(self, _executor: object, _alias: str) -> None:
        pass

    def start(self) -> None:
        self.running = True
        process = self._kernel.task().process
        for number, job in enumerate(self._jobs):
            first_s = 0.0 if job.at_once else job.seconds * (number + 1) / (len(self._jobs) + 1)
            self._kernel.spawn(process, partial(self._repeat, job, first_s))

    def _repeat(self, job: _Job, first_s: float) -> None:
        job.soon.wait(first_s)
        while True:
            job.soon.clear()
            job.run()
            for _ in range(SELDOM_TURNS if job.id.startswith(SELDOM) else 1):
                if job.soon.wait(job.seconds) or not self._quiet():
                    break

    def shutdown(self, wait: bool = True) -> None:
        self.running = False


# What stands in for what, by module of the daemon and of the trainer.
_THREADED = (
    "spotd.daemon.loop",
    "spotd.daemon.pool",
    "spotd.daemon.periodic",
    "spotd.act.alerts",
    "spotd.observe.clouds",
    "spotd.observe.nodes",
    "spotd.observe.connect",
    "spotd.observe.log_shipper",
    "trainer.fence",
    "spotd.observe.sweep",
    "spotd.act.jump_host",
)


@contextmanager
def on_kernel(
    kernel: Kernel, quiet: Callable[[], bool], jumps: Mapping[str, SimJumpHost]
) -> Iterator[None]:
    """While it lasts, the daemon's modules have threads, queues and pools of `kernel`. `quiet` says
    that nothing is left to do; `jumps` are the jump hosts that there are."""
    threading = Threading(kernel)
    by_name = {jump.host.address.host: jump for jump in jumps.values()}
    queues = SimpleNamespace(SimpleQueue=lambda: Queue(kernel), Queue=lambda: Queue(kernel))

    def executor(workers: int = 1, thread_name_prefix: str = "") -> ThreadPoolExecutor:
        return ThreadPoolExecutor(kernel, kernel.task().process, workers)

    with ExitStack() as stack:

        def put(module: str, name: str, what: object) -> None:
            stack.enter_context(patch.object(importlib.import_module(module), name, what))

        for module in _THREADED:
            put(module, "threading", threading)
        for module in ("spotd.observe.connect", "spotd.observe.log_shipper"):
            put(module, "queue", queues)
        put("spotd.daemon.pool", "ThreadPoolExecutor", executor)
        put("spotd.daemon.periodic", "ThreadPoolExecutor", lambda _workers: None)
        put(
            "spotd.daemon.periodic",
            "BackgroundScheduler",
            lambda **_settings: _Scheduler(kernel, quiet),
        )
        put("spotd.daemon.periodic", "time", SimpleNamespace(monotonic=lambda: kernel.now_us / 1e6))
        put("spotd.act.jump_host", "time", SimpleNamespace(monotonic=lambda: kernel.now_us / 1e6))
        put("spotd.act.jump_host", "log_in", log_in_by(by_name.__getitem__))
        put("spotd.act.jump_host", "Tunnel", lambda _channel, carrier: carrier)
        put("spotd.reaper.sweep", "ThreadPoolExecutor", OneByOne)
        put("spotd.reaper.sweep", "time", SimpleNamespace(monotonic=lambda: kernel.now_us / 1e6))
        put("spotd.observe.nodes", "TURN_S", 10.0)
        put("spotd.observe.nodes", "LOOK_S", 45.0)
        put("spotd.observe.nodes", "SILENT_S", 25.0)
        put("spotd.observe.nodes", "STALL_S", 20.0)
        put(
            "spotd.base.clock", "GAP_S", 25.0
        )  # longer than a turn, or nobody ever counts as silent
        put("spotd.daemon.loop", "LONGEST_WAIT_S", 90.0)
        put("spotd.act.effects", "host_key", lambda _keys, token: KeyPair("private", token))
        yield
