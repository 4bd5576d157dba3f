"""The daemon's side: a world whose market is a trace, and whose time is the bench's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from providers.base import CapacityType, Launched, LaunchRequest, OfferRequest, ProviderError
from spotd.base.clock import SystemClock
from spotd.domain.health import HealthSpec
from spotd.domain.job import CheckpointSpec
from spotd.domain.market import Timing
from spotd.domain.preferences import Preferences
from spotd.domain.states import Outcome
from spotd.planner.spot_policy import Choice, Situation
from spotd.planner.spot_policy import choose as policy_choose
from spotd.store.interface import Store
from spotd.wire import EXIT_FINISHED, EXIT_RELEASED, StartDocument
from tests.sim import daemon as simulated
from tests.sim.cloud import Rented, SimCloud, Zone
from tests.sim.daemon import SimDaemon, StoreClient, on_kernel
from tests.sim.faults import Faults
from tests.sim.kernel import Kernel
from tests.sim.machine import SimAgent, SimMachine, Trainer
from tests.sim.objects import BucketClient
from tests.sim.replay.bench import Policy
from tests.sim.replay.steps import Look, Tick
from tests.sim.replay.trace import Case
from tests.sim.replay.zones import zones_of
from tests.sim.tiers import memory
from tests.sim.world import BUCKET, SimWorld
from trainer.fence import Fence

T = TypeVar("T")
S = 1_000_000
BEGIN_US = 2977 * 7 * 86_400 * S  # a Thursday at midnight UTC, as the bench's time 0 is one
OPENS_S = 0.5  # into a tick: what happened by itself is known by then
STEP_S = 1.0
NOTICE_S = 1.0  # from a notice to the end: within the moments in which time stands still
ANY = OfferRequest(accelerator="H100", accelerator_count=8)


@dataclass(frozen=True)
class Grid:
    """The bench's time. In the first `grain_us` of each tick the daemon works."""

    gap_us: int
    grain_us: int

    def stamp(self, now_us: int) -> int:
        """What clocks say."""
        return now_us - (now_us - BEGIN_US) % self.grain_us

    def tick(self, now_us: int) -> int:
        return (now_us - BEGIN_US) // self.gap_us

    def begins_us(self, tick: int) -> int:
        return BEGIN_US + tick * self.gap_us

    def open(self, now_us: int) -> bool:
        """Whether jobs are decided about."""
        return OPENS_S * S <= (now_us - BEGIN_US) % self.gap_us < self.grain_us

    def opens_us(self, now_us: int) -> int:
        """When they are next; now, if they are."""
        if self.open(now_us):
            return now_us
        since_us = (now_us - BEGIN_US) % self.gap_us
        begins_us = now_us - since_us + (self.gap_us if since_us >= self.grain_us else 0)
        return begins_us + int(OPENS_S * S)


class CoarseClock(SystemClock):
    """Stands still within a grain."""

    def __init__(self, kernel: Kernel, grid: Grid) -> None:
        super().__init__(
            lambda: grid.stamp(kernel.now_us) * 1000, lambda: grid.stamp(kernel.now_us) * 1000
        )
        self._kernel = kernel

    def monotonic_s(self) -> float:
        return self._kernel.now_us / S

    def sleep(self, seconds: float) -> None:
        self._kernel.sleep(seconds)


class TickedStore(StoreClient):
    """Hands out jobs in the first moments of a tick alone."""

    grid: Grid
    kernel: Kernel

    def call(self, name: str, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if name == "jobs.claim" and not self.grid.open(self.kernel.now_us):
            return []
        found = super().call(name, method, *args, **more)
        if name == "jobs.next_wake_us" and found is not None:
            return self.grid.opens_us(max(found, self.kernel.now_us))
        return found


class TickedDaemon(SimDaemon):
    grid: Grid

    def _clock(self) -> Any:
        return CoarseClock(self._outside.kernel, self.grid)

    def _client(self, boundary: Callable[[str], None]) -> StoreClient:
        store = TickedStore(self._outside, boundary)
        store.grid, store.kernel = self.grid, self._outside.kernel
        return store

    def quote(self) -> None:
        """Its duty that asks for prices does so now."""
        for job in self.duties._scheduler.get_jobs():
            if job.id.startswith("offers:"):
                job.modify()


class AtOnce:
    """A network between machines and their bucket that costs no time."""

    def call(self, _what: str, _kind: str, act: Callable[[], T], **_more: object) -> T:
        return act()


class TickedTrainer(Trainer):
    """Comes up in what the case says, trains by the clock of the bench, and saves at each tick."""

    def __init__(self, machine: TickedMachine, agent: SimAgent, start: StartDocument) -> None:
        super().__init__(machine, agent, start)
        self._grid, self._case, self._machine_ = machine.grid, machine.case, machine

    def _train(self, fence: Fence) -> int:
        kernel, grid = self._kernel, self._grid
        base = self._told_step = self._step
        last = self._machine.steps_of(self.job_id)
        from_us = grid.stamp(self._machine_.created_us) + self._case.restart_s * S
        told = False
        while True:
            trained = max(0, grid.stamp(kernel.now_us) - from_us) // int(STEP_S * S)
            self._step = self._agent.step = min(base + trained, last)
            self._machine.watch.trained(self, self._step)
            final, stop = self._step >= last, self.stop_wanted
            at_tick = (kernel.now_us - BEGIN_US) % grid.gap_us == 0 and self._step > base
            if final or stop or self.save_wanted or at_tick:
                if self._step > self._told_step:
                    self._tell()
                trigger = "final" if final else "stop" if stop else "cadence"
                self._save(fence, trigger, final=final, released=stop)
                self.save_wanted = False
            if final:
                return EXIT_FINISHED
            if stop:
                self._agent.say("released", {"step": self._step, "manifest": ""})
                return EXIT_RELEASED
            first_us = from_us + int(STEP_S * S)
            if not told and kernel.now_us >= first_us:
                self._tell_first(base)
                told = True
            due_us = [grid.begins_us(grid.tick(kernel.now_us) + 1)]
            due_us.append(from_us + int((last - base) * STEP_S * S))
            if not told:
                due_us.append(first_us)
            self._nap((min(at for at in due_us if at > kernel.now_us) - kernel.now_us) / S)

    def _tell_first(self, base: int) -> None:
        """Of a step that is done by now, though the clock stands still."""
        kept, self._step = self._step, base + 1
        self._tell()
        self._step = kept


class TickedMachine(SimMachine):
    grid: Grid
    case: Case
    created_us: int


class TracedWorld(SimWorld):
    """One zone for each of the trace."""

    def __init__(self, kernel: Kernel, case: Case) -> None:
        self.case = case
        self.grid = Grid(case.gap_s * S, case.grain_s * S)
        super().__init__(kernel, Faults(0, {}))
        box = TickedDaemon(self, "box0")
        box.grid = self.grid
        self.box = box
        self.policy: Policy = policy_choose
        self.daemons = [box]
        self.timing = Timing(granted_s=0.0)
        self.ticks = [Tick() for _ in range(case.ticks)]
        for cloud in self.clouds.values():
            cloud.notice_s = NOTICE_S
            cloud.hear_ended(lambda _rented: self._show(self.grid.tick(kernel.now_us)))
            self._listen(cloud)

    def _zones(self, cloud: str) -> list[Zone]:
        return zones_of(self.case, cloud)

    def _machine(self, rented: Rented) -> SimMachine:
        machine = TickedMachine(
            self.kernel,
            self.faults,
            rented.id,
            self._open_store,
            self.steps.__getitem__,
            self.watch,
            self.gangs,
        )
        machine.grid, machine.case, machine.created_us = self.grid, self.case, rented.created_us
        machine.make_trainer = TickedTrainer  # type: ignore[assignment]
        self.machines[rented.id] = machine
        return machine

    def _open_store(self, _url: str, machine: SimMachine) -> BucketClient:
        return BucketClient(self.bucket, AtOnce(), lambda: machine.online)  # type: ignore[arg-type]

    def _listen(self, cloud: SimCloud) -> None:
        """Write down what is asked for, and what comes of it."""
        launch = cloud.launch

        def heard(request: LaunchRequest) -> Launched:
            known = len(cloud.rented)
            try:
                found = launch(request)
            except ProviderError:
                self._note(request, granted=False)
                raise
            if len(cloud.rented) > known:
                self._note(request, granted=True)
            return found

        cloud.launch = heard  # type: ignore[method-assign]

    def _note(self, request: LaunchRequest, *, granted: bool) -> None:
        tick = self._tick_now()
        if tick is not None:
            tick.asked.append((*self._place(request), granted))

    def _place(self, request: LaunchRequest) -> tuple[str, str]:
        return request.capacity_type.value, self.case.key(self.case.zones.index(request.zone))

    def _tick_now(self) -> Tick | None:
        number = self.grid.tick(self.kernel.now_us)
        return self.ticks[number] if 0 <= number < len(self.ticks) else None

    # --- what happens by itself

    def begin(self) -> None:
        """The box is set up a tick before the job is submitted."""
        for number in range(self.case.ticks):
            begins_us = self.grid.begins_us(number)
            self.kernel.at(begins_us, lambda number=number: self._begin_tick(number))
            self.kernel.at(begins_us + int(OPENS_S * S), self._look)
            self.kernel.at(
                begins_us + self.grid.grain_us - 1, lambda number=number: self._end_tick(number)
            )
        self.kernel.at(BEGIN_US + int(OPENS_S * S / 2), self._submit)
        self.kernel.now_us = BEGIN_US - self.grid.gap_us
        self.box.start()

    def _begin_tick(self, number: int) -> None:
        """What the trace says, in words of clouds; machines say that they live."""
        self._show(number)
        for cloud in self.clouds.values():
            for rented in cloud.alive():
                spot = rented.request.capacity_type is CapacityType.SPOT
                zone = self.case.zones.index(rented.request.zone)
                if spot and not self.case.up(zone, number) and not rented.ending_us:
                    cloud.preempt(rented)
        self.box.quote()
        for machine in self.machines.values():
            if machine.agent is not None and machine.process.alive:
                machine.agent._beat()

    def _show(self, number: int) -> None:
        for zone, name in enumerate(self.case.zones):
            cloud = self.clouds[self.case.key(zone).partition("/")[0]]
            place = cloud.zones[name]
            place.room = 99 if number >= 0 and self.case.up(zone, number) else 0
            price = round(self.case.price(zone, max(number, 0)) * 1e6)
            if price != place.spot_microusd_per_h:
                cloud.reprice(place, price)

    def _submit(self) -> None:
        case, steps = self.case, int(self.case.work_s / STEP_S)
        self.submit(
            "job",
            steps,
            alternatives=(ANY,),
            checkpoint=CheckpointSpec(store=BUCKET, engine="spotd", every_s=float(case.gap_s)),
            progress_every_s=float(case.gap_s),
            health=HealthSpec(check_every_s=30 * 86_400.0),
            preferences=Preferences(work_steps=steps, step_s=STEP_S),
            deadline_us=BEGIN_US + case.deadline_s * S,
        )

    def _look(self) -> None:
        """The bench decides at each tick, and the daemon when something happens: something does."""
        self.store.jobs.mark_due([job.id for job in self.store.jobs.rows() if job.outcome is None])
        self.box.poke()

    def _end_tick(self, number: int) -> None:
        held = [
            " ".join(self._place(rented.request))
            for cloud in self.clouds.values()
            for rented in cloud.alive()
            if not rented.ending_us
        ]
        self.ticks[number].runs = ", ".join(held)

    def choose(self, situation: Situation) -> Choice:
        """The policy, written down."""
        choice = self.policy(situation)
        tick = self._tick_now()
        if tick is not None:
            tick.looks.append(Look(situation, choice, BEGIN_US / S))
        return choice


@contextmanager
def bench_time(case: Case) -> Iterator[None]:
    """While it lasts, what the daemon and the simulator wait for is the bench's."""
    gap_s = float(case.gap_s)
    constants: Sequence[tuple[str, str, object]] = (
        ("spotd.planner.placement.build_situation", "LOOK_S", gap_s),
        ("spotd.planner.placement.build_situation", "LATE_S", 0.0),
        ("spotd.planner.rules.spot_policy_rule", "LOOK_S", gap_s),
        ("spotd.planner.rules.spot_policy_rule", "AGAIN_S", gap_s),
        ("spotd.planner.spot_policy.pool_history", "AT_ONCE_S", gap_s / 2),
        ("spotd.planner.core.remaining_work", "START_S", float(case.restart_s)),
        ("spotd.planner.placement.rank", "STEERED_CAP_S", gap_s / 2),
        ("spotd.daemon.history_cache", "EVERY_S", 0.0),
        ("spotd.observe.journal_writer", "HEARD_S", 0.0),
        ("spotd.observe.journal_writer", "LINGER_S", 0.0),
        ("spotd.daemon.loop", "LONGEST_WAIT_S", gap_s),
        ("tests.sim.cloud", "LAUNCH_S", (0.0, 0.0)),
        ("tests.sim.machine", "SETUP_S", (0.0, 0.0)),
        ("tests.sim.machine", "SAVE_S", (0.0, 0.0)),
        ("tests.sim.machine", "POLL_S", 0.05),
        ("tests.sim.daemon", "SCHEDULE", replace(simulated.SCHEDULE, offers_s=30 * 86_400.0)),
    )
    with ExitStack() as stack:
        for module, name, value in constants:
            stack.enter_context(patch.object(import_module(module), name, value))
        yield


class _Unwatched:
    """Nobody judges this run."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args: None


class Lived(NamedTuple):
    """`unfinished` says why the job is not done at the end of the last tick; "" where it is."""

    ticks: Sequence[Tick]
    unfinished: str


def lived(
    case: Case,
    ticks: int,
    hear: Callable[[str], None] | None = None,
    policy: Policy = policy_choose,
    look: Callable[[Store], None] = lambda _store: None,
) -> Lived:
    """What the daemon does in so many ticks; `look` sees what is on record after them."""
    kernel = Kernel()
    world = TracedWorld(kernel, case)
    world.hear, world.policy = hear, policy
    world.watch = _Unwatched()  # type: ignore[assignment]
    world.on_committed = world.on_duty_taken = world.on_duty_write = world.on_duty_held = (
        lambda *_args: None
    )
    with (
        closing(kernel),
        on_kernel(kernel, lambda: False, {}),
        bench_time(case),
        patch("spotd.planner.rules.spot_policy_rule.choose", world.choose),
        memory() as open_store,
    ):
        world.store = open_store(lambda: world.grid.stamp(kernel.now_us), world.notify)
        world.begin()
        kernel.run(world.grid.begins_us(ticks) + 10 * S)
        (job,) = world.store.jobs.rows()
        look(world.store)
        world.store.close()
    done = job.outcome is Outcome.SUCCEEDED
    return Lived(world.ticks[:ticks], "" if done else job.end.outcome_text or "it goes on")
