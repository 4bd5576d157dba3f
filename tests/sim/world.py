"""One simulated deployment: clouds, machines, a bucket, jobs, and the daemons that keep them."""

from __future__ import annotations

from collections.abc import Mapping

from providers.base import OfferRequest
from spotd.model import CheckpointSpec, HealthSpec, JobSpec, Node, Timing
from spotd.store.base import Store, Submission
from tests.sim.cloud import Rented, SimCloud, Zone
from tests.sim.daemon import Outside, SimDaemon
from tests.sim.faults import Faults
from tests.sim.kernel import Kernel
from tests.sim.machine import SimMachine
from tests.sim.net import Net
from tests.sim.objects import Bucket, BucketClient

CLOUDS = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}  # seconds from a notice to the end
REGIONS, ZONES = 2, 2
BUCKET = "s3://bucket/ckpt"


class SimWorld:
    """Everything of one run but its faults over time and its oracles."""

    def __init__(self, kernel: Kernel, faults: Faults, store: Store, daemons: int = 1) -> None:
        self.kernel = kernel
        self.faults = faults
        self.store = store
        self.bucket = Bucket(BUCKET)
        self.store_away = False
        self.steps: dict[str, int] = {}  # job id -> its last step
        self.specs: dict[str, JobSpec] = {}
        self.machines: dict[str, SimMachine] = {}
        self.clouds: Mapping[str, SimCloud] = {
            name: SimCloud(kernel, faults, name, self._zones(name), self._machine, notice_s)
            for name, notice_s in CLOUDS.items()
        }
        outside = Outside(
            kernel,
            faults,
            store,
            self.clouds,
            self.bucket,
            self.machines.get,
            {},
            Timing(),
            self.boundary,
            lambda: self.store_away,
        )
        self.daemons = [SimDaemon(outside, f"box{number}") for number in range(daemons)]

    def boundary(self, daemon: SimDaemon, what: str) -> None:
        """Where `daemon` stands: it may die there."""
        if self.faults.strikes("boundary_crash"):
            pause_s = self.faults.stream("boundary_crash").uniform(1, 120)
            self.kernel.after(pause_s, daemon.start_again)
            self.kernel.kill(daemon.process)

    def notify(self) -> None:
        """The store says that a job became due."""
        for daemon in self.daemons:
            daemon.poke()

    def submit(self, name: str, steps: int, **spec: object) -> str:
        """A job of so many steps; its id."""
        job_id = f"j{len(self.steps):09d}"
        self.steps[job_id] = steps
        fields: dict[str, object] = {
            "name": name,
            "run": "python train.py",
            "alternatives": (OfferRequest(accelerator="H100", accelerator_count=8),),
            "checkpoint": CheckpointSpec(store=BUCKET, engine="spotd", every_s=600.0),
            "progress_every_s": 120.0,
            "health": HealthSpec(check_every_s=300.0),
            **spec,
        }
        job = self.specs[job_id] = JobSpec(**fields)  # type: ignore[arg-type]
        submission = Submission(job_id, job, f"name: {name}\n", "alice", "", b"key")
        self.store.submit(submission, self.kernel.now_us)
        return job_id

    # --- for the oracles

    def spec(self, job_id: str) -> JobSpec:
        return self.specs[job_id]

    def node_of(self, token: str) -> Node | None:
        """The node that was to have this machine, as the store has it now."""
        return next((node for node in self._nodes() if node.token == token), None)

    def _nodes(self) -> list[Node]:
        return [node for job_id in self.steps for node in self.store.job_nodes(job_id)]

    def may_fail(self, job_id: str) -> bool:
        """Whether a failure of this job would be its own program's."""
        return self.faults.fired["trainer_crash"] > 0

    def quiet_for_s(self, _seconds: float) -> bool:
        """Whether nothing has kept daemon and machines apart for so long."""
        return False

    def excused_s(self, _rented: Rented) -> float:
        """How much longer than others this orphan may live."""
        return 0.0

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
            self.kernel, self.faults, rented.id, self._open_store, self.steps.__getitem__
        )
        self.machines[rented.id] = machine
        return machine

    def _open_store(self, _url: str, machine: SimMachine) -> BucketClient:
        net = Net(self.kernel, self.faults, lambda _what: None)
        return BucketClient(self.bucket, net, lambda: machine.reachable)
