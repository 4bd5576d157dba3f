"""B3, scarce offers: no job gets the last machine of a place while one of higher priority, which
could have had it, stands there without any."""

from __future__ import annotations

from providers.base import CapacityType
from spotd.domain.job import Desired, Job
from spotd.domain.node import Node
from spotd.domain.plan import AddNode, Plan
from spotd.domain.states import NodeState
from spotd.domain.view import View
from tests.sim.cloud import Rented
from tests.sim.oracles.base import Oracle, S
from tests.sim.world import SimWorld

# It was due for so long, and nobody decided about it: then nothing is kept for it any more.
DECIDED_S = 100.0
ANSWERED_S = 50.0  # it asked so long ago: what became of it, nobody knows


class ScarceOracle(Oracle):
    """Remembers who stood there when a machine was decided to be asked for, and judges when its
    cloud makes it, and has no more. On record is who waits; whose turn it is, and what could be
    had, is judged by what the jobs ask for and by the clouds' books."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._stood: dict[str, list[str]] = {}  # by token: jobs
        # By another clock, or by an older record, others are waiting.
        self._on = "clock_jumps" not in world.faults.enabled()
        self.judged = 0
        for cloud in world.clouds.values():
            cloud.hear_created(self._created)

    def committed(self, view: View, plan: Plan, now_us: int) -> None:
        added = [change.node for change in plan.changes if isinstance(change, AddNode)]
        if not self._on or not added or self.world.restored_us:
            return
        have = self._machines()
        standing = [
            job for job in self.world.store.jobs.rows(finished=False) if self._stands(job, now_us)
        ]
        for node in added:
            self._stood[node.token] = [
                job.id
                for job in standing
                if job.spec.queue.priority > view.job.spec.queue.priority
                and all(_asks(other, node, now_us) for other in have.get(job.id, ()))
                and job.spec.resources.num_nodes <= view.job.spec.resources.num_nodes
                and any(want.admits(node.offer) for want in job.spec.resources.alternatives)
                and not 0 < job.spec.limits.max_hourly_microusd < node.offer.price_microusd_per_h
            ]

    def _stands(self, job: Job, now_us: int) -> bool:
        """It was looked at, found nothing, and would ask for whatever there is."""
        overdue_s = (now_us - job.wakeup.wake_at_us) / S if job.wakeup.wake_at_us else 0.0
        waits = 0 < job.queue.waiting_since_us < now_us and job.desired is Desired.RUN
        room = not job.queue.room_asked_us and job.backoff.place_after_us <= now_us
        return waits and room and overdue_s < DECIDED_S and job.id not in self.world.poisoned

    def _machines(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for node in self.world.store.nodes.active():
            found.setdefault(node.job_id, []).append(node)
        return found

    def _created(self, rented: Rented) -> None:
        stood = self._stood.pop(rented.token, ())
        zone = self.world.clouds[rented.provider].zones[rented.request.zone]
        last = rented.request.capacity_type is CapacityType.SPOT and zone.room == 0
        if not last or self.world.store_away:
            return
        self.judged += 1
        have = self._machines()
        wanted = {one.id: one for one in self.world.store.jobs.rows(finished=False)}
        for job_id in stood:
            job = wanted.get(job_id)
            served = any(node.instance_id for node in have.get(job_id, ()))
            if job is not None and not served and job.desired is Desired.RUN:
                text = f"{rented.job_id} has the last machine of {zone.name}, and {job_id}"
                self.fail("B3", f"{text} of priority {job.spec.queue.priority} stood there before")


def _asks(other: Node, node: Node, now_us: int) -> bool:
    """For the same, and has no answer yet."""
    same = other.state is NodeState.LAUNCHING and other.offer.key == node.offer.key
    return same and not other.instance_id and now_us - other.requested_at_us < ANSWERED_S * S
