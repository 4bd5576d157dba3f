"""The bench's side: its adapter of the policy on a view like that of the traces' simulator.

`play` is the simulator where DIR is not at hand: ticks, launches that replace what runs, restarts
that do not stack, and preemptions that lose no work; it has no bills. With DIR, its own `simulate`
is played (`by_simulator`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

from bench.policy_ours import IDLE, ON_DEMAND, SPOT, Ours
from spotd.planner.spot_policy import Choice, Situation, choose
from tests.sim.replay.steps import Look, Tick
from tests.sim.replay.trace import Case

_NAMES = {IDLE: "", SPOT: "spot", ON_DEMAND: "on_demand"}
Player = Callable[[Any, Case], None]
Policy = Callable[[Situation], Choice]


class Ticking:
    """What `spotbench.sim.View` shows to a policy, and its two actions."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.zones, self.nz = list(case.zones), len(case.zones)
        self.gap, self.deadline = float(case.gap_s), float(case.deadline_s)
        self.work, self.d = float(case.work_s), float(case.restart_s)
        self.od_price = list(case.on_demand)
        self.egress = self.xfer = [[0.0] * self.nz for _ in range(self.nz)]
        self.tick, self.mode, self.done, self.rem_overhead = 0, IDLE, 0.0, 0.0
        self.zone: int | None = None
        self.last_zone: int | None = None
        self.preempted = self._launched = False

    @property
    def work_left(self) -> float:
        return self.work - self.done

    def spot_price(self, zone: int) -> float:
        return self._case.price(zone, self.tick)

    def try_launch(self, zone: int, mode: int) -> bool:
        if mode == SPOT and not self._case.up(zone, self.tick):
            return False
        if (self.mode, self.zone) == (mode, zone) and not self._launched:
            return True
        assert not self._launched, "one launch per tick"
        self.mode, self.zone, self.rem_overhead, self._launched = mode, zone, self.d, True
        return True

    def terminate(self) -> None:
        self.mode, self.zone = IDLE, None

    def begin_tick(self) -> bool:
        """Credit the tick before, and take away what is to be taken; False once all is done."""
        if self.tick and self.mode != IDLE:
            trained = max(0.0, self.gap - self.rem_overhead)
            self.rem_overhead = max(0.0, self.rem_overhead - self.gap)
            self.done = min(self.work, self.done + trained)
            self.last_zone = self.zone
        self.preempted = self._launched = False
        if self.work_left <= 1e-3:
            return False
        if self.mode == SPOT and self.zone is not None and not self._case.up(self.zone, self.tick):
            self.terminate()
            self.preempted = True
        return True


def play(policy: Any, case: Case) -> None:
    """Until the job is done. Raises AssertionError where its deadline is missed."""
    view = Ticking(case)
    policy.reset(view)
    while view.begin_tick():
        assert view.tick < case.ticks, f"{case.name}: the bench misses the deadline"
        policy.step(view)
        view.tick += 1


def by_simulator(policy: Any, case: Case) -> None:
    """By the simulator of the DIR that `trace.cases` read, without its own guard."""
    import_module("spotbench.sim").simulate(
        policy,
        [list(row) for row in case.avail],
        [list(row) for row in case.spot],
        list(case.on_demand),
        float(case.gap_s),
        float(case.deadline_s),
        float(case.work_s),
        float(case.restart_s),
        zones=list(case.zones),
        net=None,
        free_signal=False,
    )


class Recorded(Ours):
    """The adapter as it is, told no more than the daemon knows, and written down."""

    signals = False

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.ticks: list[Tick] = []
        self._keys = [case.key(zone) for zone in range(len(case.zones))]

    def step(self, view: Any) -> None:
        self.ticks.append(Tick())
        super().step(view)
        if view.mode != IDLE:
            self.ticks[-1].runs = f"{_NAMES[view.mode]} {self._keys[view.zone]}"

    def situation(self, view: Any) -> Situation:
        found = super().situation(view)
        pools = tuple(replace(pool, key=self._keys[int(pool.key)]) for pool in found.pools)
        running = found.running
        if running is not None:
            running = replace(running, pool=self._keys[int(running.pool)])
        # A save at each tick: nothing is unsaved there, and a tick's work may be.
        work = replace(found.work, unsaved_s=0.0, lost_s=float(self.case.gap_s))
        self._told = replace(
            found, work=work, pools=pools, running=running, signalled=False, probe_s=None
        )
        return self._told

    def _done(self, view: Any, choice: Choice) -> bool:
        self.ticks[-1].looks.append(Look(self._told, choice, 0.0))
        if choice.pool:
            choice = replace(choice, pool=str(self._keys.index(choice.pool)))
        granted = super()._done(view, choice)
        if choice.pool:
            asked = (choice.action.value, self._keys[int(choice.pool)], granted)
            self.ticks[-1].asked.append(asked)
        return granted


def played(case: Case, player: Player = play, policy: Policy = choose) -> list[Tick]:
    """What the bench does at each tick until the job is done."""
    adapter = Recorded(case)
    with patch("bench.policy_ours.choose", policy):
        player(adapter, case)
    return adapter.ticks
