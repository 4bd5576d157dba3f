"""What must hold, whatever fails: the invariants of docs/faults.md, judged from outside.

The oracles believe nobody: machines and money are judged by the clouds' own books, checkpoints by
the bucket's, decisions by what the store had on record at that moment. Thresholds hide bugs, so
that beside each there is a sum: orphan node-seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from providers.base import CapacityType
from spotd.model import Desired, LeaveReason, Node, Outcome
from spotd.states import NodeState
from spotd.wire import Head, head_key, parse_head, parse_manifest, sha256
from tests.sim.cloud import Rented
from tests.sim.kernel import EPOCH_US
from tests.sim.world import SimWorld

LOOK_S = 10.0  # between looks at who is whose
LEAK_S = 300.0  # how long an orphan may live while its cloud and a daemon are up
S = 1_000_000


@dataclass(frozen=True)
class Violation:
    """`invariant` as the page names it."""

    invariant: str
    at_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at_s:.1f} s: {self.text}"


class ViolationError(Exception):
    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


@dataclass
class Oracles:
    """Attach once; raises ViolationError out of the event that broke something."""

    world: SimWorld
    orphan_s: float = 0.0
    orphans: dict[str, float] = field(default_factory=dict)  # id -> seconds with everybody up
    heads: dict[str, Head] = field(default_factory=dict)
    steps_lost: Counter[str] = field(default_factory=Counter)

    def attach(self) -> None:
        """Hear of every write to the bucket and every mutation of a cloud."""
        self.world.bucket.moved = self._moved
        for cloud in self.world.clouds.values():
            cloud.created = self._created
            cloud.told_to_end = self._told_to_end
        self.world.kernel.after(LOOK_S, self._look)

    def _fail(self, invariant: str, text: str) -> None:
        at_s = (self.world.kernel.now_us - EPOCH_US) / S
        raise ViolationError(Violation(invariant, at_s, text))

    # --- the bucket: F1, C1

    def _moved(self, key: str, before: bytes | None, after: bytes) -> None:
        if not key.endswith("/HEAD"):
            return
        new = parse_head(after)
        old = parse_head(before) if before is not None else None
        if old is not None:
            self._judge_move(old, new)
        if new.current is not None:
            self._judge_checkpoint(new)
        self.heads[new.job] = new

    def _judge_move(self, old: Head, new: Head) -> None:
        if new.generation < old.generation:
            text = f"{new.job}: generation {new.generation} wrote over {old.generation}"
            self._fail("F1", text)
        if old.final and new.current != old.current:
            self._fail("C1", f"{new.job}: something was committed after the final checkpoint")
        old_step = old.current.step if old.current else 0
        new_step = new.current.step if new.current else 0
        if new_step < old_step:
            self._fail("C1", f"{new.job}: HEAD went back from step {old_step} to {new_step}")

    def _judge_checkpoint(self, head: Head) -> None:
        assert head.current is not None
        data = self.world.bucket.objects.get(head.current.manifest)
        if data is None or sha256(data[0]) != head.current.digest:
            self._fail("C1", f"{head.job}: HEAD names {head.current.manifest}, which is not there")
        elif parse_manifest(data[0]).step != head.current.step:
            self._fail("C1", f"{head.job}: HEAD says step {head.current.step}, its manifest not")

    # --- the clouds: L2, X1, B2, D1, G1

    def _created(self, rented: Rented) -> None:
        twins = [
            other
            for cloud in self.world.clouds.values()
            for other in cloud.alive()
            if other.token == rented.token
        ]
        if len(twins) > 1:
            self._fail("L2", f"two machines live for {rented.token}")
        node = self._node(rented)
        if node is None:
            self._fail("X1", f"{rented.id} was created without an intent on record")
            return
        cap = self.world.spec(node.job_id).max_hourly_microusd
        spot = rented.request.capacity_type is CapacityType.SPOT
        if cap and spot and node.offer.price_microusd_per_h > cap:
            self._fail("B2", f"{rented.id} was asked for above its cap")

    def _told_to_end(self, rented: Rented) -> None:
        """Somebody ends a machine: that has to be what the record says, and with reason."""
        node = self._node(rented)
        if node is None or node.state is NodeState.GONE:
            return  # an orphan: L1 wants it ended
        if node.state is not NodeState.TERMINATING:
            self._fail("G1", f"{node.id} is {node.state.value} and was ended")
        self._judge_reason(rented, node)

    def _judge_reason(self, rented: Rented, node: Node) -> None:
        """A machine that trains and can be heard is ended for what its user, its cloud or its own
        program said, and for nothing else."""
        machine = self.world.machines[rented.id]
        agent = machine.agent
        heard = agent is not None and agent.running and machine.reachable
        if node.leave_reason is LeaveReason.LOST and heard and self.world.quiet_for_s(120.0):
            self._fail("D1", f"{node.id} was ended as lost, and could be heard")
        if node.leave_reason is LeaveReason.PREEMPTED and not machine.was_warned:
            self._fail("D1", f"{node.id} was ended as preempted, and had no notice")

    def _node(self, rented: Rented) -> Node | None:
        """The node of a machine, by its token, which is on record before anything is asked for."""
        return self.world.node_of(rented.token)

    # --- time: L1, L3, D2

    def _look(self) -> None:
        self.world.kernel.after(LOOK_S, self._look)
        if self.world.store_away:
            return
        living = [rented for cloud in self.world.clouds.values() for rented in cloud.alive()]
        owned = {node.token for node in self.world.store.active_nodes()}
        for rented in living:
            if rented.token in owned:
                self.orphans.pop(rented.id, None)
            else:
                self._orphan(rented)
        self._one_chosen()

    def _orphan(self, rented: Rented) -> None:
        cloud = self.world.clouds[rented.provider]
        self.orphan_s += LOOK_S
        awake = any(d.awake(self.world.kernel.now_us) for d in self.world.daemons)
        if cloud.out or cloud.rejects_credentials or not awake:
            return
        self.orphans[rented.id] = self.orphans.get(rented.id, 0.0) + LOOK_S
        if self.orphans[rented.id] > LEAK_S + self.world.excused_s(rented):
            self._fail("L1", f"{rented.id} has belonged to nobody for {LEAK_S:.0f} s")

    def _one_chosen(self) -> None:
        seen: set[tuple[str, int]] = set()
        for node in self.world.store.active_nodes():
            if node.chosen and node.state in (NodeState.BOOTING, NodeState.RUNNING):
                if (node.job_id, node.rank) in seen:
                    self._fail("D2", f"two nodes are chosen for rank {node.rank} of {node.job_id}")
                seen.add((node.job_id, node.rank))

    # --- the end: P1, L3, Q1

    def judge_end(self) -> None:
        """After the calm: everything is done, and nothing costs money any more."""
        for job in self.world.store.jobs():
            if job.outcome is None and job.desired is not Desired.PAUSE:
                self._fail("P1", f"{job.name} is not finished: {self._why(job.id)}")
            if job.outcome is Outcome.SUCCEEDED:
                head = self.heads.get(job.id)
                if head is None or not head.final or head.current is None:
                    self._fail("C1", f"{job.name} succeeded, and its HEAD is not final")
                elif head.current.step != self.world.steps[job.id]:
                    self._fail("C1", f"{job.name} succeeded at step {head.current.step}")
            if job.outcome is Outcome.FAILED and not self.world.may_fail(job.id):
                self._fail("P1", f"{job.name} failed: {job.outcome_text}")
        for cloud in self.world.clouds.values():
            for rented in cloud.alive():
                self._fail("L3", f"{rented.id} lives on after every job has ended")

    def _why(self, job_id: str) -> str:
        rows = self.world.store.events(job_id)
        return rows[-1].event.text if rows else "no event"


def key_of(job_id: str) -> str:
    """Where the job's HEAD lies."""
    return head_key(job_id)


Check = Callable[[], None]
