"""One simulated deployment: clouds, machines, a bucket, jobs, and the daemons that keep them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b

from spotd.domain.job import Desired, JobSpec
from spotd.domain.market import Timing
from spotd.domain.node import Node
from spotd.domain.plan import Plan
from spotd.domain.queue import Limits
from spotd.domain.view import View
from spotd.money.budget import Budget
from spotd.store.interface import Store
from spotd.store.jobs import Submission
from spotd.wire.parts import build
from tests.sim.cloud import Rented, SimCloud, Zone
from tests.sim.daemon import Duty, SimDaemon
from tests.sim.faults import Faults
from tests.sim.gangs import Gangs
from tests.sim.jump import SimJumpHost
from tests.sim.kernel import EPOCH_US, Kernel
from tests.sim.machine import SimMachine, Watch
from tests.sim.net import Net
from tests.sim.objects import Bucket, BucketClient
from tests.sim.operators import People
from tests.sim.tiers import node_of

CLOUDS = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}  # seconds from a notice to the end
REGIONS, ZONES = 2, 2
DEAD_S = 30.0  # from a death in a sweep to the next start
# From a renewal that is due to one that is late: a lease (daemon.SCHEDULE) has then a few seconds
# left, or ran out a few seconds ago.
LATE_S = (72.0, 84.0)
KEPT = 4096  # lines of the trace, until they are digested
# Writes that are made all the time, and change nothing that a later daemon would do.
IDLE = (
    "before jobs.claim",
    "after a look",
    "leases.take",
    "leases.take_many",
    "nodes.record_heartbeats",
    "nodes.mark_silent_due",
    "market.record_offers",
    "market.record_provider",
)
BUCKET = "s3://bucket/ckpt"


class SimWorld:
    """Everything of one run but its faults over time and its oracles."""

    def __init__(
        self, kernel: Kernel, faults: Faults, daemons: int = 1, jumps: Sequence[str] = ()
    ) -> None:
        self.kernel = kernel
        self.faults = faults
        self.store: Store
        self.bucket = Bucket(BUCKET)
        self.people = People(kernel, faults)
        # By cloud: what its machines are behind.
        self.jumps = {
            name: SimJumpHost(kernel, f"jump-{name}", faults.stream(f"jump/{name}"))
            for name in jumps
        }
        self.timing = Timing()
        self.limits = Limits()
        self.months: tuple[Budget, ...] = ()  # budgets of the configuration
        self.store_away = False
        self.most_room = 6  # spot machines that a place has
        self.quiet = False  # nothing is left to do: clouds are asked more seldom
        self.poisoned: set[str] = set()  # jobs that nothing can be decided about
        self.watch: Watch
        self.on_committed: Callable[[View, Plan, int, int], None]
        self.on_duty_taken: Callable[[Duty, int], None]
        self.on_duty_write: Callable[[Duty, str], None]
        self.on_duty_held: Callable[[Duty], None]
        self.left_alone: Callable[[Rented], None] = lambda _rented: None
        self.deserted_us = 0  # when its last control box was lost for good
        self.restored_us = 0  # when an older copy took the place of the database
        self.released_us = 0  # when a person last said that what nobody wants may go
        self.paged: list[tuple[int, str]] = []  # what the reaper told, and when
        self.steps: dict[str, int] = {}  # job id -> its last step
        self.specs: dict[str, JobSpec] = {}
        self.machines: dict[str, SimMachine] = {}
        self.gangs = Gangs()
        self.crashes = 0  # of daemons
        self.decisions = 0  # that may have been written
        self.boundaries = 0  # that a daemon came past
        self.die_at = 0  # which of them one does not survive
        self._digest = blake2b(digest_size=16)
        self._told: list[tuple[int, str]] = []  # when and what, not digested yet
        self._last: list[tuple[int, str]] = []  # before that
        self.hear: Callable[[str], None] | None = None  # of all that happens, as it does
        self.clouds: Mapping[str, SimCloud] = {
            name: SimCloud(kernel, faults, name, self._zones(name), self._machine, notice_s)
            for name, notice_s in CLOUDS.items()
        }
        self.daemons = [SimDaemon(self, f"box{number}") for number in range(daemons)]

    def boundary(self, daemon: SimDaemon, what: str) -> None:
        """Where `daemon` stands: it may die there."""
        self.tell(f"{daemon.process.name} {what}")
        if not what.endswith(IDLE):
            self.boundaries += 1
            if self.boundaries == self.die_at:
                self.crash(daemon, DEAD_S)
        if self.faults.strikes("boundary_crash"):
            pause_s = self.faults.stream("boundary_crash").uniform(1, 120)
            self.crash(daemon, pause_s)
        if what == "before leases.take_many" and self.faults.strikes("renewal_late"):
            daemon.stall(self.faults.stream("renewal_late").uniform(*LATE_S))
        if self.faults.strikes("boundary_stall"):
            daemon.stall(self.faults.stream("boundary_stall").uniform(0.01, 60), what)

    def crash(self, daemon: SimDaemon, pause_s: float) -> None:
        """kill -9, and a start later. Raises Killed where the daemon itself stands there."""
        self.crashes += 1
        self.tell(f"{daemon.process.name} dies")
        self.kernel.after(pause_s, daemon.start_again)
        self.kernel.kill(daemon.process)

    def desert(self) -> None:
        """All control boxes are lost, and nobody sets up another one."""
        self.deserted_us = self.kernel.now_us
        self.tell("every control box is lost")
        for daemon in self.daemons:
            daemon.lost = True
            self.kernel.kill(daemon.process)

    def tell(self, what: str) -> None:
        """Something happened that others can see: part of the trace."""
        told = self._told
        told.append((self.kernel.now_us, what))
        if len(told) >= KEPT:
            self._digest_told()
        if self.hear is not None:
            self.comment(what)

    def comment(self, what: str) -> None:
        """What stands behind what happened: for who hears, and no part of the trace."""
        if self.hear is not None:
            self.hear(_line(self.kernel.now_us, what))

    def told(self, last: int) -> list[str]:
        """The last lines of the trace."""
        lines = (self._last + self._told)[-last:]
        return [_line(at_us, what) for at_us, what in lines]

    def trace(self) -> str:
        """A digest of all of it: equal for equal runs."""
        self._digest_told()
        return self._digest.hexdigest()

    def _digest_told(self) -> None:
        self._digest.update("".join(f"{at_us} {what}\n" for at_us, what in self._told).encode())
        self._last, self._told = self._told or self._last, []

    def notify(self) -> None:
        """The store says that a job became due: to the daemon that wrote, and nobody else."""
        task = self.kernel.current
        for daemon in self.daemons:
            if task is None or task.process is daemon.process:
                daemon.poke()

    def done(self) -> bool:
        """Nothing is left to do, and nothing costs money."""
        living = any(cloud.alive() for cloud in self.clouds.values())
        return not living and all(job.outcome is not None for job in self.store.jobs.rows())

    # --- its users

    def submit(self, name: str, steps: int, **spec: object) -> str:
        """A job of so many steps; its id."""
        job_id = f"j{len(self.steps):09d}"
        self.steps[job_id] = steps
        job = build(JobSpec, {"name": name, "run": "python train.py", **spec})
        self.specs[job_id] = job
        submission = Submission(job_id, job, f"name: {name}\n", "alice", "", b"key")
        self._insist(lambda: self.store.jobs.submit(submission, self.kernel.now_us))
        return job_id

    def desire(self, job_id: str, desired: Desired) -> None:
        """Somebody changes their mind."""
        self.tell(f"a user wants {job_id} to {desired.value}")
        self._insist(lambda: self._desire(job_id, desired))

    def _desire(self, job_id: str, desired: Desired) -> None:
        """Nothing can be wanted of a job that has ended, or that a restored database forgot."""
        job = self.store.jobs.find(job_id)
        if job is not None and job.outcome is None:
            self.store.jobs.set_desired(job_id, desired, self.kernel.now_us)

    def _insist(self, act: Callable[[], object]) -> None:
        """People try again when the database is away."""
        if self.store_away:
            self.kernel.after(30.0, lambda: self._insist(act))
        else:
            act()

    # --- for the oracles

    def counts(self) -> Counter[str]:
        """What there was of everything."""
        rented = [one for cloud in self.clouds.values() for one in cloud.rented.values()]
        return Counter(
            events=self.kernel.events,
            crashes=self.crashes,
            boundaries=self.boundaries,
            machines=len(rented),
            preemptions=sum(one.ended_by == "preempted" for one in rented),
            reaped=sum(bool(one.ended_us) and one.told_by == "reaper" for one in rented),
            switched_off=sum(one.ended_by == "dead-man" for one in rented),
        )

    def spec(self, job_id: str) -> JobSpec:
        return self.specs[job_id]

    def rented(self, instance_id: str) -> Rented:
        """That machine, of whichever cloud."""
        books = (cloud.rented.get(instance_id) for cloud in self.clouds.values())
        return next(found for found in books if found is not None)

    def node_of(self, token: str) -> Node | None:
        """The node that was to have this machine, as the store has it now."""
        return node_of(self.store, token)

    def _zones(self, cloud: str) -> list[Zone]:
        random = self.faults.stream(f"market/{cloud}")
        return [
            Zone(
                provider=cloud,
                region=f"{cloud}-{region}",
                name=f"{cloud}-{region}{letter}",
                spot_microusd_per_h=random.randrange(15_000_000, 45_000_000, 10_000),
                room=random.randint(1, 6),
            )
            for region in range(REGIONS)
            for letter in "abcdef"[:ZONES]
        ]

    def _machine(self, rented: Rented) -> SimMachine:
        machine = SimMachine(
            self.kernel,
            self.faults,
            rented.id,
            self._open_store,
            self.steps.__getitem__,
            self.watch,
            self.gangs,
        )
        machine.way = self.jumps.get(rented.provider)
        machine.switch_off = partial(self._switch_off, rented)
        machine.left_alone = lambda: self.left_alone(rented)
        self.machines[rented.id] = machine
        return machine

    def _switch_off(self, rented: Rented) -> None:
        """Its own dead-man does: not in the middle of its own task."""
        cloud = self.clouds[rented.provider]
        self.kernel.after(0.0, lambda: cloud.end(rented, "dead-man"))

    def _open_store(self, _url: str, machine: SimMachine) -> BucketClient:
        net = Net(self.kernel, self.faults, lambda _what: None)
        return BucketClient(self.bucket, net, lambda: machine.online)


def _line(at_us: int, what: str) -> str:
    return f"{(at_us - EPOCH_US) / 1e6:.6f} {what}"
