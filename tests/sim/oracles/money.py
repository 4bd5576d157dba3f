"""B1: what a job costs by the clouds' own books, against what its user allowed."""

from __future__ import annotations

from collections import Counter

from spotd.domain.job import JobSpec
from spotd.money.budget import Budget
from tests.sim.cloud import Rented
from tests.sim.daemon import SCHEDULE
from tests.sim.oracles.base import Oracle
from tests.sim.world import SimWorld

# From the limit to the end of its machines: to notice, to save, to end, and to be believed. Only
# time counts in which somebody could act.
OVER_S = 600.0
IGNORED_S = 2 * SCHEDULE.survey_s  # for each terminate that the cloud took and did not follow
LATE_SHARE = 0.02  # prices are asked for now and then: what they did since is not known yet
HOUR_S = 3600.0


class MoneyOracle(Oracle):
    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._over_s: Counter[str] = Counter()
        self._quoted: dict[str, int] = {}  # what a machine cost when its cloud last told, an hour
        self._untold: Counter[str] = Counter()  # by job: what rose while its cloud did not
        for cloud in world.clouds.values():
            cloud.hear_created(self._created)

    def spent_microusd(self, job_id: str, until_us: int) -> int:
        """By the clouds' books, on demand and spot alike, by the second."""
        return sum(
            rented.cost_microusd(until_us)
            for cloud in self.world.clouds.values()
            for rented in cloud.rented.values()
            if rented.job_id == job_id
        )

    def known_microusd(self, job_id: str, until_us: int) -> int:
        """Without what nobody could know: a cloud that does not tell its prices raised them."""
        return self.spent_microusd(job_id, until_us) - self._untold[job_id]

    def look(self, passed_s: float) -> None:
        self._look_at_months(passed_s)
        for cloud in self.world.clouds.values():
            for rented in cloud.alive():
                self._count_untold(rented, cloud.unquoted, passed_s)
                limit = self.world.spec(rented.job_id).limits.max_cost_microusd
                now_us = self.world.kernel.now_us
                if limit and self.known_microusd(rented.job_id, now_us) > limit:
                    self._count(rented, passed_s)

    def _look_at_months(self, passed_s: float) -> None:
        """By the clouds' books: what is covered by a budget that is used up has a while to save and
        to end. (No run comes to the end of a month.)"""
        world = self.world
        now_us = world.kernel.now_us
        for budget in world.months:
            covered = [job_id for job_id, spec in world.specs.items() if _covers(budget, spec)]
            if sum(self.known_microusd(one, now_us) for one in covered) <= budget.microusd:
                continue
            for cloud in world.clouds.values():
                for rented in cloud.alive():
                    if rented.job_id in covered:
                        self._count(rented, passed_s, f"the month of {budget.name}")

    def _count_untold(self, rented: Rented, unquoted: bool, passed_s: float) -> None:
        price = rented.prices[-1][1]
        if not unquoted:
            self._quoted[rented.id] = price
            return
        risen = max(0, price - self._quoted.setdefault(rented.id, price))
        self._untold[rented.job_id] += int(risen * passed_s / HOUR_S)

    def _count(self, rented: Rented, passed_s: float, what: str = "its job's max_cost_usd") -> None:
        machine = self.world.machines[rented.id]
        if not self.everybody_up(rented) or not (machine.reachable or rented.ending_us):
            return
        self._over_s[rented.id] += passed_s  # type: ignore[assignment]
        if self._over_s[rented.id] > OVER_S + rented.ignored * IGNORED_S:
            self.fail("B1", f"{rented.id} runs on, and {what} is spent")

    def _created(self, rented: Rented) -> None:
        node = self.world.node_of(rented.token)
        limit = self.world.spec(rented.job_id).limits.max_cost_microusd
        if node is None or not limit:
            return
        if self.known_microusd(rented.job_id, node.requested_at_us) >= limit * (1 + LATE_SHARE):
            self.fail("B1", f"{node.id} was asked for when all its job may cost was spent")


def _covers(budget: Budget, spec: JobSpec) -> bool:
    return budget.covers("alice", spec.queue.project)  # who submits everything
