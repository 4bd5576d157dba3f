"""S1, D2, P1 to P3, A1: what is on record, while it is written and when all is calm."""

from __future__ import annotations

from collections.abc import Iterable

from spotd.base.clock import STEP_S
from spotd.domain.job import Desired
from spotd.domain.node import Node
from spotd.domain.plan import AddNode, ChangeNode, MoveNode, Plan
from spotd.domain.states import NodeState, Outcome
from spotd.domain.view import View
from spotd.store.instances import ABSENT_S
from tests.sim.cloud import Rented
from tests.sim.kernel import EPOCH_US
from tests.sim.oracles.base import Oracle, S
from tests.sim.oracles.bucket import BucketOracle
from tests.sim.oracles.limits import LimitOracle
from tests.sim.oracles.money import MoneyOracle
from tests.sim.oracles.queue import QueueOracle
from tests.sim.oracles.rest import RestOracle
from tests.sim.oracles.scarce import ScarceOracle
from tests.sim.world import SimWorld

# Of one job, beside those in place of machines that a cloud took away: more is a loop.
CREATES_AN_HOUR = 20
TAKEN = ("preempted", "died")
MESSAGES_AN_HOUR = 240  # to one person
EVENTS = 100_000


class RecordOracle(Oracle):
    def __init__(self, world: SimWorld, bucket: BucketOracle, money: MoneyOracle) -> None:
        super().__init__(world)
        self._bucket = bucket
        self._money = money
        self.limits = LimitOracle(world)
        self.queue = QueueOracle(world, bucket)
        self.scarce = ScarceOracle(world)
        self.rest = RestOracle(world)
        self._created: dict[tuple[str, int], list[Rented]] = {}  # by job and hour
        world.on_committed = self._committed
        self._clocks_are_right = "clock_jumps" not in world.faults.enabled()
        for cloud in world.clouds.values():
            cloud.hear_created(self._count)

    def _committed(self, view: View, plan: Plan, stored: int, now_us: int) -> None:
        """A decision was accepted: it has to be about the job as it stood, and what its user
        allows."""
        job = view.job
        if job.version != stored:
            self.fail("S1", f"{job.id}: decided on version {job.version}, written over {stored}")
        self._judge_time(job.id, now_us)
        self._judge_nodes(view, plan)
        self.limits.committed(view, plan)
        self.queue.committed(view, plan, now_us)
        self.scarce.committed(view, plan, now_us)
        self.rest.committed(view, now_us)
        cap = job.spec.limits.max_hourly_microusd
        for change in plan.changes:
            if isinstance(change, AddNode) and cap:
                price = change.node.offer.price_microusd_per_h
                if price > cap:
                    self.fail("B2", f"{change.node.id} is asked for at {price}, above {cap}")

    def _judge_time(self, job_id: str, now_us: int) -> None:
        """No job is charged for time that did not pass. A box's clock is wrong for less than
        BELIEF_S here; of each time, ours may take what is not too much to be a time server's."""
        ahead_s = (now_us - self.world.kernel.now_us) / S
        if ahead_s > STEP_S * (1 + self.world.faults.fired["clock_jumps"]):
            self.fail("B1", f"{job_id} is decided about {ahead_s:.0f} s ahead of time")

    def _judge_nodes(self, view: View, plan: Plan) -> None:
        nodes = {node.id: node for node in view.nodes}
        if any(isinstance(change, MoveNode) for change in plan.changes):
            self._judge_chosen(self.world.store.nodes.of_job(view.job.id))
        for change in plan.changes:
            if not isinstance(change, ChangeNode):
                continue
            if change.fields.get("chosen"):
                self._judge_chosen(self.world.store.nodes.of_job(view.job.id))
            if change.fields.get("state") is NodeState.GONE:
                self._judge_gone(nodes[change.node_id])

    def _judge_gone(self, node: Node) -> None:
        """A machine that we did not end, and that lives, is taken for gone when its cloud has not
        listed it for long."""
        if (
            node.machine.cloud_state != "absent"
            or node.machine.terminated_at_us
            or not node.instance_id
        ):
            return
        rented = self.world.rented(node.instance_id)
        missed_s = rented.missed_for_us / S
        if rented.alive and missed_s < ABSENT_S - 1.0 and self._clocks_are_right:
            self.fail("D1", f"{node.id} lives, was not listed for {missed_s:.0f} s, and is gone")

    def _count(self, rented: Rented) -> None:
        """In place of one that is taken away a job may have as many as it asks for side by side. A
        storm that hits one job alone, every few minutes, is not a loop of ours."""
        job_id = rented.job_id
        hour = int((self.world.kernel.now_us - EPOCH_US) / (3600 * S))
        created = self._created.setdefault((job_id, hour), [])
        created.append(rented)
        spec = self.world.spec(job_id)
        taken = sum(map(self._taken, created))
        if (
            len(created)
            > CREATES_AN_HOUR + spec.resources.candidates * spec.resources.num_nodes * taken
        ):
            text = f"was given {len(created)} machines in an hour, and {taken} were taken away"
            self.fail("P3", f"{job_id} {text}")

    def _taken(self, rented: Rented) -> bool:
        """Its cloud did, or said that it would."""
        return self.world.machines[rented.id].was_warned or rented.ended_by in TAKEN

    def look(self, nodes: Iterable[Node]) -> None:
        self._judge_chosen(nodes)

    def _judge_chosen(self, nodes: Iterable[Node]) -> None:
        seen: set[tuple[str, int]] = set()
        for node in nodes:
            if node.chosen and node.state in (NodeState.BOOTING, NodeState.RUNNING):
                if (node.job_id, node.rank) in seen:
                    self.fail("D2", f"two nodes are chosen for rank {node.rank} of {node.job_id}")
                seen.add((node.job_id, node.rank))

    # --- the end

    def judge_end(self) -> None:
        for job in self.world.store.jobs.rows():
            if job.id in self.world.poisoned:
                continue  # the others are to be finished all the same
            if job.outcome is None and job.desired is not Desired.PAUSE:
                invariant = "P2" if self.world.poisoned else "P1"
                self.fail(invariant, f"{job.name} is not finished: {self._why(job.id)}")
            if job.outcome is Outcome.SUCCEEDED:
                judge = self._judge_image if job.spec.program.bake else self._judge_success
                judge(job.id)
            if job.outcome is Outcome.FAILED and not self._may_fail(job.id):
                self.fail("P1", f"{job.name} failed: {job.end.outcome_text}")
        self._judge_alerts()
        self.rest.judge_end()

    def _judge_image(self, job_id: str) -> None:
        """A bake's success: one image on record, which is there, of a disk that was clean."""
        rows = [row for row in self.world.store.images.rows() if row.job_id == job_id and row.good]
        there = [self.world.clouds[row.provider].images.made.get(row.vendor_name) for row in rows]
        if [made is not None and made.clean for made in there] != [True]:
            self.fail("P1", f"{job_id} baked {rows}, and in the clouds there is {there}")

    def _may_fail(self, job_id: str) -> bool:
        """Its own program crashed, or its money is spent: by the clouds' books, unless calls were
        lost or refused; what may be there counts in full until it is known."""
        if self.world.spec(job_id).program.bake and self.world.crashes:
            return True  # then nobody may know whether a disk was cleaned
        fired = self.world.faults.fired
        limit = self.world.spec(job_id).limits.max_cost_microusd
        spent = self._money.spent_microusd(job_id, self.world.kernel.now_us)
        unknown = fired["credentials"]
        unknown += sum(count for name, count in fired.items() if name.startswith("cloud_"))
        over = limit > 0 and (spent > limit / 2 or unknown > 0)
        return over or fired["trainer_crash"] + fired["trainer_lies"] > 0

    def _judge_success(self, job_id: str) -> None:
        head = self._bucket.heads.get(job_id)
        if head is None or not head.final or head.current is None:
            self.fail("C1", f"{job_id} succeeded, and its HEAD is not final")
        if head.current.step != self.world.steps[job_id]:
            self.fail("C1", f"{job_id} succeeded at step {head.current.step}")

    def _judge_alerts(self) -> None:
        """Whatever a person had to be told was told, and not without end."""
        told = self.world.people.told
        for row in self.world.store.events.rows(None, 0, EVENTS):
            if row.event.alert and told.get((row.job_id, row.event.kind), 0) < row.at_us:
                self.fail("A1", f"nobody was told of {row.event.kind} of {row.job_id}")
        for hour, messages in self.world.people.messages.items():
            if messages > MESSAGES_AN_HOUR:
                self.fail("A1", f"{messages} messages in hour {hour}")

    def _why(self, job_id: str) -> str:
        rows = self.world.store.events.rows(job_id, 0, EVENTS)
        return rows[-1].event.text if rows else "no event"
