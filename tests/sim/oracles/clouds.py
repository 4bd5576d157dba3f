"""L2, X1, B2, D1, G1: every machine that is made or ended, at the moment when it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from providers.base import CapacityType
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from tests.sim.cloud import Rented
from tests.sim.machine import SimMachine
from tests.sim.oracles.base import Oracle, S
from tests.sim.world import SimWorld

WITHDRAWN_S = 60  # until a withdrawal is heard and followed
SPEAKS_S = 120.0  # until who comes back from wherever has heard it again
TAKEN = ("preempted", "died")
PASSES_S = 100.0  # that a jump host lets through again, until it is known who is behind it
BOOTS_S = 300.0  # ... and has told it to start, which it had done long ago


class CloudOracle(Oracle):
    """Hears of every mutation of a cloud."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._obeyed_s: Counter[str] = Counter()
        for cloud in world.clouds.values():
            cloud.hear_created(self._created)
            cloud.hear_told(self._told_to_end)
            cloud.hear_stranger = self._touched

    def _created(self, rented: Rented) -> None:
        twins = [
            other
            for cloud in self.world.clouds.values()
            for other in cloud.alive()
            if other.token == rented.token
        ]
        if len(twins) > 1:
            self.fail("L2", f"two machines live for {rented.token}")
        node = self.world.node_of(rented.token)
        self._judge_intent(rented, node)
        if node is not None:
            self._judge_price(rented, node)

    def _judge_intent(self, rented: Rented, node: Node | None) -> None:
        if node is None:
            self.fail("X1", f"{rented.id} was created without an intent on record")

    def _judge_price(self, rented: Rented, node: Node) -> None:
        cap = self.world.spec(node.job_id).limits.max_hourly_microusd
        spot = rented.request.capacity_type is CapacityType.SPOT
        if cap and spot and rented.prices[0][1] > cap:
            self.fail("B2", f"{rented.id} costs more than its job allows")

    def _touched(self, what: str, instance_id: str) -> None:
        self.fail("S3", f"{instance_id} is another deployment's, and was {what}")

    def look(self, nodes: Iterable[Node], passed_s: float) -> None:
        """A machine whose notice was withdrawn is kept, unless its replacement is there, or it has
        begun to stop."""
        self._note_mute()
        nodes, now_us = list(nodes), self.world.kernel.now_us
        if all(node.state is not NodeState.DRAINING for node in nodes):
            for node in nodes if self._obeyed_s else ():
                self._obeyed_s.pop(node.id, None)
            return
        followed = any(daemon.follows(now_us) for daemon in self.world.daemons)
        manned = {n.job_id for n in nodes if n.chosen and n.state is not NodeState.DRAINING}
        for node in nodes:
            machine = self.world.machines.get(node.instance_id)
            if node.state is not NodeState.DRAINING:
                self._obeyed_s.pop(node.id, None)  # each withdrawal has its own time
            if machine is None or node.state is not NodeState.DRAINING or node.job_id in manned:
                continue
            noticed = node.departure.leave_reason is LeaveReason.PREEMPTED and self._all_stay(
                node, nodes
            )
            if noticed and followed and self.everybody_up(self.world.rented(node.instance_id)):
                self._obeyed_s[node.id] += int(passed_s)
            if self._obeyed_s[node.id] > WITHDRAWN_S:
                self.fail("D1", f"{node.id} goes on draining, and its notice was withdrawn")

    def _all_stay(self, node: Node, nodes: Iterable[Node]) -> bool:
        """Of a gang, all: each drains for the notice of another, too."""
        key = (node.job_id, node.generation)
        mates = [n for n in nodes if n.chosen and (n.job_id, n.generation) == key]
        machines = [self.world.machines.get(n.instance_id) for n in mates]
        whole = len(mates) >= (node.gang_size or self.world.spec(node.job_id).resources.num_nodes)
        return whole and all(machine is not None and machine.stays for machine in machines)

    def _note_mute(self) -> None:
        for cloud in self.world.clouds.values():
            for rented in cloud.alive():
                machine = self.world.machines[rented.id]
                if not machine.speaks:
                    machine.mute_us = self.world.kernel.now_us
                if not machine.is_well:
                    machine.ill_us = self.world.kernel.now_us

    def _told_to_end(self, rented: Rented) -> None:
        """Somebody ends a machine: that has to be what the record says, and with reason."""
        node = self.world.node_of(rented.token)
        if node is None or rented.told_by == "reaper":
            return  # see RestoredOracle and DesertionOracle
        if node.state not in (NodeState.TERMINATING, NodeState.GONE):
            self.fail("G1", f"{node.id} is {node.state.value} and was ended")
        self._judge_reason(rented, node)

    def _with_another(self, rented: Rented, node: Node) -> bool:
        """It is given back because another of its gang is, and such a one did go."""
        clouds = self.world.clouds.values()
        others = [one for cloud in clouds for one in cloud.rented.values() if one is not rented]
        gone = any(one.job_id == rented.job_id and one.ended_by in TAKEN for one in others)
        return gone and node.departure.leave_text.startswith("rank ")

    def _mates(self, rented: Rented) -> list[SimMachine]:
        """The machine, and those that a gang's job has or had beside it."""
        if self.world.spec(rented.job_id).resources.num_nodes == 1:
            return [self.world.machines[rented.id]]
        found = [one for cloud in self.world.clouds.values() for one in cloud.rented.values()]
        return [self.world.machines[one.id] for one in found if one.job_id == rented.job_id]

    def _judge_reason(self, rented: Rented, node: Node) -> None:
        """A machine that trains and can be heard is ended for what its user, its cloud or its own
        program said, and for nothing else."""
        machine = self.world.machines[rented.id]
        # When it was given up. One that stays when told to end, heals, and is missing from a
        # listing then, was not ended for that.
        given_up_us = min(
            (at_us for at_us in (node.machine.gone_at_us, node.departure.left_at_us) if at_us),
            default=0,
        )
        spoke_s = (given_up_us - machine.mute_us) / S
        lost = node.departure.leave_reason is LeaveReason.LOST and node.training.exit_code is None
        lost = lost and not self._with_another(rented, node)
        if lost and machine.speaks and spoke_s > SPEAKS_S:
            self.fail("D1", f"{node.id} is ended as lost, and had spoken for {spoke_s:.0f} s")
        way, well_s = machine.way, (given_up_us - machine.ill_us) / S
        if lost and way is not None and machine.is_well and well_s > SPEAKS_S:
            through_s = (given_up_us - way.up_since_us) / S if way.up else 0.0
            if through_s < PASSES_S:
                self.fail("D1", f"{node.id} is ended as lost, and the way to it was broken")
        late = node.departure.leave_reason is LeaveReason.BOOT_TIMEOUT
        if late and machine.stays and spoke_s > BOOTS_S:
            self.fail("D1", f"{node.id} is ended as not up, and trains for {spoke_s:.0f} s")
        reasons = any(m.was_warned or m.was_alone for m in self._mates(rented))
        if node.departure.leave_reason is LeaveReason.PREEMPTED and not reasons:
            self.fail("D1", f"{node.id} was ended as preempted, and had no notice")
