"""K1, deadlines: a job that says how much there is to do is done by then, however spot behaves, as
long as machines on demand are granted and live."""

from __future__ import annotations

from spotd.domain.states import Outcome
from tests.sim.oracles.base import Oracle, S
from tests.sim.world import SimWorld

# What may happen without a word about it from whoever promised: spot that goes, with or without
# having been announced.
MARKET = frozenset({"preempt", "storm", "withdrawn", "rebalance"})


class DeadlineOracle(Oracle):
    """Judges at the end, by when each job was finished; one that a person stopped is its own."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._promised = MARKET.issuperset(world.faults.enabled())

    def judge_end(self) -> None:
        if not self._promised:
            return
        for job in self.world.store.jobs.rows():
            deadline_us, mine = job.spec.limits.deadline_us, job.spec.preferences.measurable
            if not (deadline_us and mine) or job.outcome is Outcome.CANCELLED:
                continue
            late_s = ((job.end.finished_at_us or self.world.kernel.now_us) - deadline_us) / S
            if late_s > 0:
                self.fail("K1", f"{job.name} was to be done {late_s:.0f} s before it was")
