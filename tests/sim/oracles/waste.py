"""L1, L1c, L3: machines that are paid for in vain."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spotd.domain.node import Node
from spotd.domain.on_node_loss import OnNodeLoss
from spotd.domain.states import NodeState
from tests.sim.cloud import Rented
from tests.sim.daemon import SCHEDULE
from tests.sim.oracles.base import Oracle
from tests.sim.world import SimWorld

BESIDE_S = 300.0  # how long a machine may live beside one that trains in its place
LEAK_S = 300.0  # how long an orphan may live while its cloud and a daemon are up
ENDED_S = 900.0  # ... and any machine of a job that has ended
# For each terminate that the cloud took and did not follow: it is repeated by the second survey
# after it, or by the third, when that goes unanswered.
IGNORED_S = 3 * SCHEDULE.survey_s
# Of faults that a machine may be nobody's for a while after: an answer, a daemon or a listing that
# was lost, a machine that stays.
MAKE_ORPHANS = ("cloud_", "list_", "boundary_", "commit_", "daemon_", "store_", "clock_", "term")
_VAIN = {
    "L1": "has belonged to nobody",
    "L1c": "was kept beside the one that trains",
    "L3": "has belonged to a job that has ended",
}


class WasteOracle(Oracle):
    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self.orphan_s = 0.0  # of all machines, whoever was up
        self._orphans: dict[str, float] = {}  # id -> seconds while everybody was up
        self._after_end: dict[str, float] = {}
        self._beside: dict[str, float] = {}
        self._enabled = world.faults.enabled()

    def look(self, nodes: Sequence[Node], ended: Collection[str], passed_s: float) -> None:
        """`nodes` are those not gone, `ended` the jobs with an outcome."""
        if not any(cloud.alive() for cloud in self.world.clouds.values()):
            return
        training = {n.job_id for n in nodes if n.chosen and n.state is NodeState.RUNNING}
        idle = (NodeState.LAUNCHING, NodeState.BOOTING)
        beside = {
            n.token
            for n in nodes
            if n.state in idle and n.job_id in training and not self._comes(n)
        }
        owned = {node.token for node in nodes}
        for cloud in self.world.clouds.values():
            for rented in cloud.alive():
                if self._held(rented):
                    continue
                if rented.token in owned:
                    self._orphans.pop(rented.id, None)
                else:
                    self.orphan_s += passed_s
                    self._count(self._orphans, "L1", LEAK_S, rented, passed_s)
                if rented.token in beside:
                    self._count(self._beside, "L1c", BESIDE_S, rented, passed_s)
                if rented.job_id in ended:
                    self._count(self._after_end, "L3", ENDED_S, rented, passed_s)

    def _comes(self, node: Node) -> bool:
        """It is on its way to a gang that trains meanwhile: until it is ready, for as long as one
        of any job may be on its way."""
        shrinks = self.world.spec(node.job_id).resources.elastic.on_loss is not OnNodeLoss.WAIT
        return shrinks and not node.chosen and not node.startup.ready_at_us

    def _held(self, rented: Rented) -> bool:
        """What a restored database does not know of, and in a quarantine all that it does not
        want; and a crowd that its cloud had forgotten: a person has to look first."""
        if rented.forgotten_us > self.world.released_us:
            return True
        if not self.world.restored_us:
            return False
        if self.world.store.deployment.quarantine():
            return True
        seen = rented.created_us <= self.world.released_us
        return not seen and self.world.node_of(rented.token) is None

    def _count(
        self, ages: dict[str, float], invariant: str, most_s: float, rented: Rented, passed_s: float
    ) -> None:
        # From a listing that went unanswered to the next one nobody can know of the machine.
        if (
            not self.everybody_up(rented)
            or "daemon" in self.world.clouds[rented.provider].unanswered
        ):
            return
        age_s = ages[rented.id] = ages.get(rented.id, 0.0) + passed_s
        if age_s > most_s + rented.ignored * IGNORED_S:
            self.fail(invariant, f"{rented.id} {_VAIN[invariant]} for {age_s:.0f} s")

    def judge_end(self) -> None:
        self._judge_sum()
        for cloud in self.world.clouds.values():
            for rented in cloud.alive():
                self.fail("L3", f"{rented.id} lives on after every job has ended")

    def _judge_sum(self) -> None:
        """Below every threshold, too: where nothing makes orphans there are none."""
        if self.orphan_s and not any(f.startswith(MAKE_ORPHANS) for f in self._enabled):
            self.fail("L1c", f"orphans lived for {self.orphan_s:.0f} s, and nothing made any")
