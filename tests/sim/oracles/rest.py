"""Q1: where nothing new is known nothing is left to decide. To decide twice is to decide once.

While a run lasts, now and then right after a decision; and of every job when all is calm.
"""

from __future__ import annotations

import spotd.daemon.reconcile
from spotd.daemon.reconcile import market_now
from spotd.domain.queue import Limits
from spotd.domain.view import View
from tests.sim.daemon import SimDaemon
from tests.sim.oracles.base import Oracle
from tests.sim.world import SimWorld

EVERY = 25  # decisions: each takes as long as another one


class RestOracle(Oracle):
    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._decided = 0

    def committed(self, view: View, decided_us: int) -> None:
        """By the daemon that runs now, unless it stood still since: then more may be known, or due.
        What a limit refused is asked for again."""
        self._decided += 1
        world, task = self.world, self.world.kernel.current
        limited = world.limits != Limits() or view.job.spec.limits.max_cost_microusd
        if self._decided % EVERY or limited or task is None:
            return
        for daemon in world.daemons:
            if daemon.process is task.process and daemon.world.clock.now_us() == decided_us:
                self._judge(daemon, view.job.id, "was decided about just now")

    def judge_end(self) -> None:
        for daemon in self.world.daemons:
            for job_id in sorted(self.world.steps):
                self._judge(daemon, job_id, "is left as it is")

    def _judge(self, daemon: SimDaemon, job_id: str, how: str) -> None:
        now_us = daemon.world.clock.now_us()
        view = self.world.store.load_view(job_id, now_us)
        if view is None or job_id in self.world.poisoned:
            return
        market = market_now(daemon.world, self.world.timing)
        plan = spotd.daemon.reconcile.decide(view, market, now_us)
        if plan.changes:
            how = "has ended" if view.job.outcome is not None else how
            self.fail("Q1", f"{job_id} {how}, and {plan.changes[0]} is decided")
