"""A world whose market is a trace, and in which asking and booting take time.

Assumed, and the same for all arms:

* Who has no room says so after what that cloud takes (`bench/hunt.py`): AWS answers the call, GCP
  and Azure accept it and list it as failed later. On-demand is always granted.
* Nine of ten machines answer 2 to 8 minutes after the create, which the source documents call
  typical; the tenth takes 8 to 16, and what is not there after `boot_timeout` is given up. How long
  is drawn from seed, zone and tick: who asks at the same moment gets the same.
* What follows until the first step is what is left of the trace's restart.
* What the trace takes away has its cloud's notice first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from random import Random
from unittest.mock import patch

from bench.hunt import SAYS_NO_S
from providers.base import (
    CapacityError,
    CapacityType,
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    OfferRequest,
    Pending,
)
from spotd.domain.health import HealthSpec
from spotd.domain.job import CheckpointSpec
from spotd.domain.market import Timing
from spotd.domain.node import Node
from spotd.domain.preferences import NO_PREFERENCES, Preferences
from spotd.domain.states import NodeState
from spotd.wire import StartDocument
from tests.sim import daemon as simulated
from tests.sim.cloud import FORGOTTEN_S, Rented, SimCloud, Zone
from tests.sim.daemon import CloudClient
from tests.sim.faults import Faults
from tests.sim.hedging.arms import Arm
from tests.sim.kernel import EPOCH_US, Kernel
from tests.sim.machine import STEP_S, SimAgent, SimMachine, Trainer
from tests.sim.replay.trace import Case
from tests.sim.replay.zones import zones_of
from tests.sim.world import BUCKET, CLOUDS, SimWorld

S = 1_000_000
BOOT_S, SLOW_S, SLOW_SHARE = (120.0, 480.0), (480.0, 960.0), 0.1
SAVE_EVERY_S = 600.0
AT_ONCE = "aws"  # it refuses in the answer to the call
BEGIN_US = EPOCH_US + 60 * S  # the daemon has been up for that long
ANY = OfferRequest(accelerator="H100", accelerator_count=8)


def boot_s(seed: str, place: str, tick: int, before: int) -> float:
    """Of the machine that is asked for there in that tick, after so many others."""
    random = Random(f"{seed}/{place}/{tick}/{before}")
    slow = random.random() < SLOW_SHARE
    return random.uniform(*(SLOW_S if slow else BOOT_S))


class SlowClient(CloudClient):
    """A cloud's refusal is not there at once."""

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        try:
            return super().launch(request)
        except CapacityError:
            if self.name == AT_ONCE:
                self._cloud._kernel.sleep(SAYS_NO_S[AT_ONCE])
            raise


class SlowCloud(SimCloud):
    """One that accepts what it cannot give, but where the client waits for its answer."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.refused: dict[str, tuple[int, LaunchRequest]] = {}  # token -> when that is known

    def launch(self, request: LaunchRequest) -> Launched:
        known = self.refused.get(request.token)
        if known is None:
            try:
                return super().launch(request)
            except CapacityError:
                wait_s = 0.0 if self.name == AT_ONCE else SAYS_NO_S[self.name]
                known = (self._kernel.now_us + int(wait_s * S), request)
                self.refused[request.token] = known
        if self._kernel.now_us < known[0]:
            return Pending(request.token)  # type: ignore[return-value]
        raise CapacityError(f"no capacity in {request.zone}")

    def list(self) -> list[Instance]:
        """With creates that came to nothing."""
        now_us, found = self._kernel.now_us, super().list()
        for known_us, request in self.refused.values():
            if self.name != AT_ONCE and 0 <= now_us - known_us < FORGOTTEN_S * S:
                found.append(_failed(request))
        return found


def _failed(request: LaunchRequest) -> Instance:
    return Instance(
        instance_id=f"failed-{request.token}",
        token=request.token,
        tags=dict(request.tags),
        state=InstanceState.FAILED,
        region=request.region,
        zone=request.zone,
        instance_type=request.instance_type,
        capacity_type=request.capacity_type,
        error_code="CapacityError",
    )


class SlowMachine(SimMachine):
    """`up_us` is when it answered first; 0: not yet."""

    boots_s: float
    up_us = 0
    rented: Rented

    def power_on(self) -> None:
        self.kernel.after(self.boots_s, self._up)

    def _up(self) -> None:
        if self.rented.alive:
            self.up_us = self.kernel.now_us
            super().power_on()


class PromptTrainer(Trainer):
    """Tells its first step at once, as programs do, and what follows at each save."""

    told = False

    def _train_until(self, at_us: int, last: int) -> None:
        if not self.told:
            at_us = min(at_us, self._kernel.now_us + int(STEP_S * S))
        self.told = True
        super()._train_until(at_us, last)


class PacedWorld(SimWorld):
    """One zone for each of the trace, one job, one daemon. `side_by_side` are launches made while
    another candidate was coming; `stopped` hears when a generation's program ends, however."""

    def __init__(self, kernel: Kernel, case: Case, arm: Arm, seed: str) -> None:
        self.case, self.arm, self.seed = case, arm, seed
        super().__init__(kernel, Faults(0, {}))
        self.timing = Timing(beside_s=arm.beside_s)
        self.side_by_side = 0
        self.stopped: Callable[[int], None] = lambda _generation: None
        self._asked: set[str] = set()
        self._in_tick: dict[tuple[str, int], int] = {}
        named = {case.key(zone).partition("/")[0] for zone in range(len(case.zones))}
        self.clouds = {name: self._cloud(name) for name in CLOUDS if name in named}

    def _cloud(self, name: str) -> SlowCloud:
        zones = self._zones(name)
        found = SlowCloud(
            self.kernel, self.faults, name, zones, self._machine, notice_s=CLOUDS[name]
        )
        launch = found.launch

        def heard(request: LaunchRequest) -> Launched:
            self._note(request)
            return launch(request)

        found.launch = heard  # type: ignore[method-assign]
        return found

    def _note(self, request: LaunchRequest) -> None:
        if request.token in self._asked:
            return
        self._asked.add(request.token)
        others = [one for one in self.store.nodes.active() if _coming(one)]
        self.side_by_side += any(one.token != request.token for one in others)

    @property
    def asked(self) -> int:
        """Creates that were asked for."""
        return len(self._asked)

    def _zones(self, cloud: str) -> list[Zone]:
        return zones_of(self.case, cloud)

    def _machine(self, rented: Rented) -> SimMachine:
        machine = SlowMachine(
            self.kernel,
            self.faults,
            rented.id,
            self._open_store,
            self.steps.__getitem__,
            self.watch,
            self.gangs,
        )
        place = f"{rented.request.zone}/{rented.request.capacity_type.value}"
        key = (place, self._tick())
        before = self._in_tick[key] = self._in_tick.get(key, -1) + 1
        machine.rented, machine.boots_s = rented, boot_s(self.seed, *key, before)
        machine.make_trainer = self._trainer
        self.machines[rented.id] = machine
        return machine

    def _trainer(self, machine: SimMachine, agent: SimAgent, start: StartDocument) -> Trainer:
        trainer, stopped = PromptTrainer(machine, agent, start), self.stopped
        run = trainer.run

        def live() -> None:
            try:
                run()
            finally:
                stopped(trainer.generation)

        trainer.run = live  # type: ignore[method-assign]
        return trainer

    def _tick(self) -> int:
        return max(self.kernel.now_us - BEGIN_US, 0) // (self.case.gap_s * S)

    # --- what happens by itself

    def begin(self, *, deadline: bool) -> str:
        """The job's id; it is submitted when the trace begins."""
        self._show(0)
        self.daemons[0].start()
        self.kernel.run(BEGIN_US)
        self._begin_tick()
        case, steps = self.case, int(self.case.work_s / STEP_S)
        return self.submit(
            "job",
            steps,
            alternatives=(ANY,),
            candidates=self.arm.candidates,
            checkpoint=CheckpointSpec(store=BUCKET, engine="spotd", every_s=SAVE_EVERY_S),
            progress_every_s=SAVE_EVERY_S,
            health=HealthSpec(check_every_s=30 * 86_400.0),
            preferences=Preferences(work_steps=steps, step_s=STEP_S)
            if deadline
            else NO_PREFERENCES,
            deadline_us=BEGIN_US + case.deadline_s * S if deadline else 0,
        )

    def _begin_tick(self) -> None:
        number = self._tick()
        self._show(number)
        for cloud in self.clouds.values():
            for rented in cloud.alive():
                spot = rented.request.capacity_type is CapacityType.SPOT
                zone = self.case.zones.index(rented.request.zone)
                if spot and not self.case.up(zone, number) and not rented.notices:
                    cloud.preempt(rented)
        self.kernel.after(self.case.gap_s, self._begin_tick)

    def _show(self, number: int) -> None:
        for zone, name in enumerate(self.case.zones):
            cloud = self.clouds[self.case.key(zone).partition("/")[0]]
            place = cloud.zones[name]
            place.room = 99 if self.case.up(zone, number) else 0
            price = round(self.case.price(zone, number) * 1e6)
            if price != place.spot_microusd_per_h:
                cloud.reprice(place, price)


def _coming(node: Node) -> bool:
    return not node.chosen and node.state in (NodeState.LAUNCHING, NodeState.BOOTING)


@contextmanager
def pace(case: Case) -> Iterator[None]:
    """While it lasts, what the simulator waits for is what the case and this page say."""
    rest_s = max(case.restart_s - sum(BOOT_S) / 2, 0.0)
    schedule = replace(simulated.SCHEDULE, survey_s=10.0, offers_s=60.0)  # as the daemon ships
    constants: tuple[tuple[str, str, object], ...] = (
        ("tests.sim.cloud", "LAUNCH_S", (0.0, 0.0)),
        ("tests.sim.machine", "SETUP_S", (rest_s, rest_s)),
        ("tests.sim.daemon", "SCHEDULE", schedule),
        ("tests.sim.daemon", "CloudClient", SlowClient),
        # Below GAP_S, as in production: else nobody counts as listening while no machine speaks
        # yet, and none is asked for beside a slow one.
        ("spotd.observe.nodes", "LOOK_S", 20.0),
    )
    with ExitStack() as stack:
        for module, name, value in constants:
            stack.enter_context(patch.object(import_module(module), name, value))
        yield
