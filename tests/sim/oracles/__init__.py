"""What must hold, whatever fails: the invariants, judged from outside.

The oracles believe nobody. Machines and money are judged by the clouds' own books, checkpoints by
the bucket's, decisions by what the store had on record at that moment. Thresholds hide bugs, so
beside each there is a sum: seconds that orphans lived.
"""

from __future__ import annotations

from tests.sim.oracles.base import Violation, ViolationError
from tests.sim.oracles.bucket import BucketOracle
from tests.sim.oracles.clouds import CloudOracle
from tests.sim.oracles.money import MoneyOracle
from tests.sim.oracles.record import RecordOracle
from tests.sim.oracles.waste import WasteOracle
from tests.sim.world import SimWorld

__all__ = ["Oracles", "Violation", "ViolationError"]

LOOK_S = 10.0  # between looks at who is whose


class Oracles:
    """All of them on one world; each raises ViolationError out of the event that broke its word."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.bucket = BucketOracle(world)
        self.clouds = CloudOracle(world)
        self.money = MoneyOracle(world)
        self.record = RecordOracle(world, self.bucket, self.money)
        self.waste = WasteOracle(world)
        self._look()

    def _look(self) -> None:
        self._world.kernel.after(LOOK_S, self._look)
        if not self._world.store_away:
            nodes = self._world.store.active_nodes()
            self.record.look(nodes)
            self.clouds.look(nodes, LOOK_S)
            self.waste.look(nodes, LOOK_S)
        self.money.look(LOOK_S)

    def judge_end(self) -> None:
        """After the calm: everything is done, told, and costs nothing any more."""
        self.waste.judge_end()
        self.record.judge_end()
