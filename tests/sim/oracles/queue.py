"""B1, R1, D1 of jobs that wait for room: it goes by priority, projects keep to their limits, and a
job's machines go to one of higher priority alone, when what it did is saved."""

from __future__ import annotations

from spotd.domain.job import Desired, Job
from spotd.domain.plan import AddNode, ChangeJob, Plan
from spotd.domain.queue import Limits
from spotd.domain.view import View
from spotd.planner.queue.fair_share import COOLDOWN_US, KEPT_US
from tests.sim.oracles.base import Oracle, S
from tests.sim.oracles.bucket import BucketOracle
from tests.sim.world import SimWorld


class QueueOracle(Oracle):
    """Looks at each decision that was accepted, and at all jobs and machines as they are then."""

    def __init__(self, world: SimWorld, bucket: BucketOracle) -> None:
        super().__init__(world)
        self._bucket = bucket
        self._clocks_are_right = "clock_jumps" not in world.faults.enabled()
        self.yields = 0

    def committed(self, view: View, plan: Plan, now_us: int) -> None:
        """Of a deployment with limits."""
        if self.world.limits == Limits():
            return
        added = sum(isinstance(change, AddNode) for change in plan.changes)
        if added:
            self._judge_room(view.job, now_us)
        gave = [c for c in plan.changes if isinstance(c, ChangeJob) and _gives(c)]
        if gave:
            self._judge_given(view.job)

    def _judge_room(self, job: Job, now_us: int) -> None:
        """After it took its room: is there still as much as those ahead of it wait for?"""
        jobs = {one.id: one for one in self.world.store.jobs.rows(finished=False)}
        nodes = self.world.store.nodes.active()
        limits, project = self.world.limits, job.spec.queue.project
        used = dict.fromkeys(limits.projects, 0)
        for node in nodes:
            spec = self.world.spec(node.job_id)
            if spec.queue.project in used:
                used[spec.queue.project] += 1
        if project in used and used[project] > limits.projects[project]:
            most = limits.projects[project]
            self.fail("B1", f"{project} has {used[project]} machines, and its max_nodes is {most}")
        for other in jobs.values():
            spec = other.spec
            asked = (
                0 < now_us - other.queue.room_asked_us < KEPT_US / 2 and other.queue.room_asked_us
            )
            if (
                not asked
                or spec.queue.priority <= job.spec.queue.priority
                or other.desired is not Desired.RUN
            ):
                continue
            room = limits.max_nodes - len(nodes)
            of_project = limits.projects.get(
                spec.queue.project, spec.resources.num_nodes
            ) - used.get(spec.queue.project, 0)
            # It would have had room, had this one not taken it.
            mine = spec.queue.project == project and spec.queue.project in used
            if (
                room < spec.resources.num_nodes <= room + 1
                and of_project + mine >= spec.resources.num_nodes
            ):
                text = (
                    f"{job.id} ({job.spec.queue.priority}) takes the room that {other.id} waits for"
                )
                self.fail("B1", f"{text} with priority {spec.queue.priority}")

    def _judge_given(self, job: Job) -> None:
        self.yields += 1
        now_us = self.world.kernel.now_us
        head, since_us = self._bucket.heads.get(job.id), job.queue.yields_since_us
        moved_us = self._bucket.moved_us.get(job.id, 0)
        saved = head is not None and head.generation == job.generation and head.current is not None
        if not saved or (self._clocks_are_right and moved_us < since_us):
            self.fail("R1", f"{job.id} gives its machines, and has not saved since it was asked")
        rested_us = now_us - job.queue.yielded_at_us
        if job.queue.yielded_at_us and self._clocks_are_right and rested_us < COOLDOWN_US - 60 * S:
            self.fail("D1", f"{job.id} gives its machines again after {rested_us / S:.0f} s")
        waits = [
            one
            for one in self.world.store.jobs.rows(finished=False)
            if one.queue.room_asked_us and one.spec.queue.priority > job.spec.queue.priority
        ]
        if not waits:
            self.fail("D1", f"{job.id} gives its machines, and none of higher priority waits")


def _gives(change: ChangeJob) -> bool:
    """It is left alone after it saved nothing: then it keeps them."""
    return "yielded_at_us" in change.fields and "yields_to" not in change.fields
