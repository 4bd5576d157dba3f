"""P1 and P2: every job has its turn within a tick of being due, whatever another one meets."""

from __future__ import annotations

from tests.sim.memory_store import MemoryStore
from tests.sim.oracles.base import Oracle
from tests.sim.world import SimWorld

# The loop looks every 90 s here (daemon.on_kernel), and what a daemon claimed and then died over is
# free again after ten more; the rest is for the ends of both, which fall between two looks.
TURN_S = 130.0


class TurnOracle(Oracle):
    """Looks at who waits. Time counts in which some daemon's loop could have decided: it lives,
    nothing holds it up, and the store answers. Only the store in memory says who is due."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._waits: dict[str, tuple[int, float]] = {}  # job -> since when it is due, and how long
        self._starts = 0  # of daemons
        # A box whose clock is wrong is wrong about who is due.
        self._on = "clock_jumps" not in world.faults.enabled()

    def look(self, passed_s: float) -> None:
        world, now_us = self.world, self.world.kernel.now_us
        starts = sum(daemon.starts for daemon in world.daemons)
        if not self._on or not isinstance(world.store, MemoryStore) or starts != self._starts:
            self._starts, self._waits = starts, {}  # what a dead one had claimed has to run out
            return
        deciding = any(daemon.decides(now_us) for daemon in world.daemons)
        waits = {}
        for job_id, due_us in world.store.due(now_us).items():
            before_us, waited_s = self._waits.get(job_id, (0, 0.0))
            waited_s = waited_s if before_us == due_us else 0.0  # it had its turn meanwhile
            waited_s += passed_s if deciding else 0.0
            waits[job_id] = due_us, waited_s
            if waited_s > TURN_S and job_id not in world.poisoned:
                invariant = "P2" if world.poisoned else "P1"
                self.fail(invariant, f"{job_id} is due, and waits for its turn: {waited_s:.0f} s")
        self._waits = waits
