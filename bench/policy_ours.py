"""The policy that the daemon has, as a policy of the traces' simulator: its view as a situation,
and the choice as the simulator's actions.

The simulator tells nothing of what is to be had before the window, and no time of day: what a
policy knows of a pool is what it has seen since the job began.
"""

from __future__ import annotations

from typing import Any

from providers.base import CapacityType
from spotd.planner.spot_policy import (
    UNSEEN,
    Action,
    Choice,
    Pool,
    PoolRecord,
    RemainingWork,
    RunningGang,
    Sighting,
    Situation,
    choose,
)

IDLE, SPOT, ON_DEMAND = 0, 1, 2  # spotbench.sim's modes
CAPACITY = {SPOT: CapacityType.SPOT, ON_DEMAND: CapacityType.ON_DEMAND}

STOP_S = 30.0  # the daemon's `stop_grace` where a job says nothing
PROBE_S = 60.0  # of spot, that the simulator bills a probe which finds a machine


class Ours:
    """`lost_s` is the pause between saves, 0 where a preemption loses no work."""

    name = "spotd"
    free_moves = False  # whether it is told that moves cost nothing
    signals = True  # it hears what the simulator tells for free

    def __init__(self, lost_s: float = 0.0, name: str = "spotd") -> None:
        self.lost_s, self.name = lost_s, name
        self.asked = self.refused = 0  # on-demand machines

    def reset(self, view: Any) -> None:
        self.records: list[PoolRecord] = [UNSEEN] * view.nz
        self.since_s = 0.0
        self.now_s = 0.0
        self.regions = [region(zone) for zone in view.zones]
        self.last: int | None = None  # where spot was running
        self.found, self.looked = 0, 0  # other spot at once when some was taken away

    def step(self, view: Any) -> None:
        self.now_s, self.tried = view.tick * view.gap, False
        if view.preempted and self.last is not None:
            self._see(self.last, False)
        if view.mode == SPOT:
            self._see(view.zone, True)
        if self.signals and signalled(view):
            for zone in range(view.nz):
                self._see(zone, view.spot_available(zone))
        while True:
            situation = self.situation(view)
            choice = choose(situation)
            for zone in map(int, choice.probes):
                self._see(zone, view.probe(zone))
            if not choice.probes and self._done(view, choice):
                break
        if view.preempted and (view.mode == SPOT or self.tried):
            self.looked += 1
            self.found += view.mode == SPOT
        self.last = view.zone if view.mode == SPOT else None

    def _see(self, zone: int, up: bool) -> None:
        self.records[zone] = self.records[zone].after(Sighting(self.now_s, up))

    def _done(self, view: Any, choice: Choice) -> bool:
        """Act; False where the launch was refused and another choice is due."""
        if choice.action is Action.STAY:
            return True
        if choice.action is Action.WAIT:
            if view.mode != IDLE:
                view.terminate()
            return True
        zone = int(choice.pool)
        mode = SPOT if choice.action is Action.SPOT else ON_DEMAND
        granted = bool(view.try_launch(zone, mode))
        if mode == ON_DEMAND:
            self.asked, self.refused = self.asked + 1, self.refused + (not granted)
        if mode == SPOT:
            self._see(zone, granted)
            self.tried = True
        if granted:
            self.since_s = self.now_s
        return granted

    def situation(self, view: Any) -> Situation:
        # Work done on demand is in no save either: spot that follows would lose it.
        unsaved_s = view.done % self.lost_s if self.lost_s else 0.0
        work = RemainingWork(
            left_s=view.work_left,
            deadline_s=view.deadline,
            restart_s=view.d,
            unsaved_s=unsaved_s,
            lost_s=self.lost_s,
            stop_s=STOP_S,
            look_s=view.gap,
            # The simulator's own guard keeps spot that runs at the last moment, which is not safe
            # where work is lost: the policy's has to come before it.
            late_s=view.gap if self.lost_s else 0.0,
        )
        home = None if self.free_moves else view.last_zone
        pools = tuple(
            Pool(
                key=str(zone),
                region=self.regions[zone],
                spot_usd_per_h=view.spot_price(zone),
                on_demand_usd_per_h=view.od_price[zone],
                egress_usd=0.0 if home is None else view.egress[home][zone],
                transfer_s=0.0 if home is None else view.xfer[home][zone],
                record=self.records[zone],
            )
            for zone in range(view.nz)
        )
        running = None
        if view.mode != IDLE:
            where = str(view.zone)
            running = RunningGang(where, CAPACITY[view.mode], self.since_s, view.rem_overhead)
        elsewhere = (float(self.found), float(self.looked))
        return Situation(self.now_s, work, pools, running, signalled(view), PROBE_S, elsewhere)


def signalled(view: Any) -> bool:
    """Whether the simulator tells for free what is to be had: with one zone it does."""
    return bool(view.nz == 1)


def region(zone: str) -> str:
    """Of a series' name: us-east-1 of us-east-1c_v100_1, us-west1 of us-west1-a_h100_16."""
    place, _, hardware = zone.partition("_")
    cloud = "gcp" if "h100" in hardware else "aws"
    return f"{cloud}/{place[:-2] if place[-2:-1] == '-' else place[:-1]}"
