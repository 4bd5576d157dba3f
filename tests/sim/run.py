"""One run: a seed, a profile and a tier give a world, its weather and its judges, for some hours.

The last part of a run is calm: nothing fails any more, what is broken mends, and everything has to
come to its end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from unittest.mock import patch

import spotd.daemon.reconcile
from spotd.domain.market import Market, Timing
from spotd.domain.plan import Plan
from spotd.domain.queue import Limits
from spotd.domain.view import View
from tests.sim.daemon import on_kernel
from tests.sim.fault_schedule import FAULTS, Weather
from tests.sim.faults import Faults
from tests.sim.kernel import EPOCH_US, Kernel
from tests.sim.oracles import Oracles, Violation, ViolationError
from tests.sim.profiles import PROFILES, Profile
from tests.sim.reaper import SimReaper
from tests.sim.restore import Restoring
from tests.sim.scenarios import SCENARIOS
from tests.sim.tiers import Open
from tests.sim.users import Users
from tests.sim.world import SimWorld

STORM_PART = 0.6  # of a run; the rest is calm
HOUR_US = 3_600_000_000
MINUTE_US = 60_000_000


@dataclass(frozen=True)
class Case:
    """What makes a run what it is. `off` are faults that shrinking took away. With a `scenario`
    there are no other users, and the daemon dies once, at boundary `die_at` (0: never)."""

    seed: int
    profile: str = "swarm"
    tier: str = "memory"
    hours: float = 8.0
    off: frozenset[str] = frozenset()
    scenario: str = ""
    die_at: int = 0

    @property
    def command(self) -> str:
        """What replays it."""
        if self.scenario:
            return f"python -m tests.sim --sweep {self.scenario} --die-at {self.die_at}"
        words = ["python -m tests.sim --seeds 1", f"--from {self.seed}"]
        words += [f"--profile {self.profile}", f"--tier {self.tier}", f"--hours {self.hours:g}"]
        return " ".join([*words, *(f"--off {name}" for name in sorted(self.off))])


@dataclass
class Result:
    """What became of a case. Everything but `took_s` is the same on every machine."""

    case: Case
    violation: Violation | None = None
    enabled: frozenset[str] = frozenset()
    fired: Counter[str] = field(default_factory=Counter)
    expected: dict[str, float] = field(default_factory=dict)  # how often each should have fired
    counts: Counter[str] = field(default_factory=Counter)
    tail: list[str] = field(default_factory=list)
    trace: str = ""  # a digest of everything that happened
    took_s: float = 0.0


def run(case: Case, open_store: Open, hear: Callable[[str], None] | None = None) -> Result:
    """Play the case to its end or to its first violation; `hear` is told all that happens."""
    began_s = time.process_time()
    profile = PROFILES[case.profile]
    strengths = {n: s for n, s in profile.draw(case.seed, FAULTS).items() if n not in case.off}
    kernel = Kernel()
    faults = Faults(case.seed, strengths)
    result = Result(case, enabled=frozenset(strengths))
    world = SimWorld(kernel, faults, profile.daemons, profile.jumps)
    with (
        closing(kernel),
        on_kernel(kernel, lambda: world.quiet, world.jumps),
        ExitStack() as stack,
    ):
        world.hear = hear
        world.store = store = open_store(lambda: kernel.now_us, world.notify)
        world.timing = Timing(unattended_s=profile.unattended_h * 3600)
        world.months = profile.months
        if profile.limits != Limits():
            store.market.set_limits(profile.limits)
            world.limits = profile.limits
        if profile.poison:
            stack.enter_context(_poisoned(world))
        oracles = Oracles(world)
        weather = Weather(world)
        weather.begin()
        _befall(world, profile, case.hours * STORM_PART * 3600)
        try:
            if case.scenario:
                _tell(world, case)
            else:
                Users(world, profile).begin(case.hours * STORM_PART * 0.8)
                kernel.run(EPOCH_US + int(case.hours * STORM_PART * HOUR_US))
                weather.clear_up()
                kernel.run(EPOCH_US + int(case.hours * HOUR_US))
            oracles.judge_end()
        except ViolationError as error:
            result.violation = error.violation
            result.tail = world.told(50)
        finally:
            store.close()
        result.fired, result.expected, result.trace = faults.fired, faults.expected, world.trace()
        result.counts = world.counts()
        result.counts["steps_lost"] = oracles.bucket.steps_lost.total()
        result.counts["yields"] = oracles.queue.yields
        result.counts["orphan_s"] = int(oracles.waste.orphan_s)
    result.took_s = time.process_time() - began_s
    return result


def _befall(world: SimWorld, profile: Profile, storm_s: float) -> None:
    """What happens once in every run of the profile, at a moment of chance."""
    world.most_room = profile.most_room
    for cloud in world.clouds.values():
        for zone in cloud.zones.values():
            zone.room = min(zone.room, profile.most_room)
        cloud.litters = profile.litters
    if profile.restored or profile.deserted:
        for cloud in world.clouds.values():
            cloud.add_stranger()
    if profile.restored:
        Restoring(world).begin(storm_s)
    if profile.deserted:
        SimReaper(world).start()
        at_s = world.faults.stream("desertion").uniform(0.3, 0.8) * storm_s
        world.kernel.after(at_s, world.desert)


def _tell(world: SimWorld, case: Case) -> None:
    """Play the scenario until nothing costs money any more, and a little longer."""
    world.die_at = case.die_at
    SCENARIOS[case.scenario](world)
    for _ in range(int(case.hours * 60)):
        world.kernel.run(world.kernel.now_us + MINUTE_US)
        if world.done():
            break
    world.kernel.run(world.kernel.now_us + 2 * MINUTE_US)


def _poisoned(world: SimWorld) -> AbstractContextManager[object]:
    """A bug that only some jobs meet: every decision about them fails."""
    decide = spotd.daemon.reconcile.decide

    def fails(view: View, market: Market, now_us: int) -> Plan:
        if view.job.id in world.poisoned:
            raise ZeroDivisionError("a bug that only this job meets")
        return decide(view, market, now_us)

    return patch.object(spotd.daemon.reconcile, "decide", fails)
