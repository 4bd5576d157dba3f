"""G1 of many at once: a record that says of a crowd that it is over is more likely wrong."""

from __future__ import annotations

from spotd.domain.states import NodeState
from spotd.planner.core.orphan_policy import BLAST_LEAST, BLAST_SHARE
from tests.sim.cloud import Rented
from tests.sim.daemon import SCHEDULE
from tests.sim.oracles.base import Oracle, S
from tests.sim.world import SimWorld

SWEEP_S = 0.8 * SCHEDULE.survey_s  # less than from one sweep of a cloud to its next
LEAST, SHARE = BLAST_LEAST, BLAST_SHARE  # as they were before anybody planted anything


class BlastOracle(Oracle):
    """Hears of every machine that is told to end when its row says that it is gone already, as the
    sweep's are: those of one sweep are no more than its breaker allows, but for a person's word,
    and for those that their cloud had been told to end before."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._swept: dict[str, dict[str, int]] = {name: {} for name in world.clouds}  # when, by id
        for cloud in world.clouds.values():
            cloud.hear_told(self._told_to_end)

    def _told_to_end(self, rented: Rented) -> None:
        node, now_us = self.world.node_of(rented.token), self.world.kernel.now_us
        if node is None or node.state is not NodeState.GONE or node.machine.terminated_at_us:
            return
        if rented.told_by == "reaper" or node.machine.gone_at_us <= self.world.released_us:
            return
        before = self._swept[rented.provider]
        lately = {i: at_us for i, at_us in before.items() if now_us - at_us < SWEEP_S * S}
        self._swept[rented.provider] = lately = {**lately, rented.id: now_us}
        fleet = len(self.world.clouds[rented.provider].alive())
        if len(lately) > max(LEAST, int(SHARE * (fleet + len(lately)))):
            self.fail("G1", f"{len(lately)} of {fleet} machines were swept at once, by their rows")
