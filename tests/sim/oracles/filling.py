"""P1 of a machine whose disk stays full: where another one is to be had, its job does not stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from spotd.domain.node import Node
from spotd.domain.queue import Limits
from spotd.domain.states import LeaveReason, NodeState
from tests.sim.oracles.base import Oracle, S
from tests.sim.world import SimWorld

# It is decided within a tick; a daemon that had crashed often rests in safe mode for ten minutes
# before, and a place that has just refused is not asked again for as long.
LEFT_S = 1800.0
MOVED_S = 7200.0  # after a move, one that fills up again is the job's own data: it stays
# While they may strike nobody can say from outside whether a place was to be had.
NO_PLACE = ("cloud_", "storm", "credentials")


class FillingOracle(Oracle):
    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._full_s: Counter[str] = Counter()  # node -> seconds, while it could have been left
        names = world.faults.enabled()
        self._uncertain = any(name.startswith(NO_PLACE) for name in names)

    def look(self, nodes: Sequence[Node], passed_s: float) -> None:
        """`nodes` are those not gone."""
        world = self.world
        limited = world.limits != Limits() or world.restored_us
        if limited or (self._uncertain and not world.faults.calm):
            return
        for node in nodes:
            machine = world.machines.get(node.instance_id)
            if machine is None or not machine.disk_told_us or node.state is not NodeState.RUNNING:
                self._full_s.pop(node.id, None)
            elif self._could_leave(node):
                self._full_s[node.id] += int(passed_s)
                if self._full_s[node.id] > LEFT_S and not self._moved_lately(node):
                    told_s = (world.kernel.now_us - machine.disk_told_us) / S
                    self.fail("P1", f"{node.id} stays on a disk that is full for {told_s:.0f} s")

    def _could_leave(self, node: Node) -> bool:
        world, machine = self.world, self.world.machines[node.instance_id]
        if not (machine.stays and self.everybody_up(world.rented(node.instance_id))):
            return False
        spec = world.spec(node.job_id)
        dear = spec.limits.max_cost_microusd or node.job_id in world.poisoned
        cap = spec.limits.max_hourly_microusd or 1 << 62
        places = sum(
            zone.on_sale and zone.room > 0 and zone.spot_microusd_per_h <= cap
            for cloud in world.clouds.values()
            for zone in cloud.zones.values()
            if zone.name != node.offer.zone
        )
        return not dear and places > 2

    def _moved_lately(self, node: Node) -> bool:
        now_us = self.world.kernel.now_us
        view = self.world.store.load_view(node.job_id, now_us)
        since_us = self.world.machines[node.instance_id].disk_told_us - int(MOVED_S * S)
        return view is not None and any(
            attempt.cause == LeaveReason.OUTBID.value and attempt.opened_at_us > since_us
            for attempt in view.attempts
        )
