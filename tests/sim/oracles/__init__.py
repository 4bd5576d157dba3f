"""What must hold, whatever fails: the invariants, judged from outside.

The oracles believe nobody. Machines and money are judged by the clouds' own books, checkpoints by
the bucket's, decisions by what the store had on record at that moment. Thresholds hide bugs, so
beside each there is a sum: seconds that orphans lived.
"""

from __future__ import annotations

from spotd.model import Node
from tests.sim.oracles.base import Violation, ViolationError
from tests.sim.oracles.bucket import BucketOracle
from tests.sim.oracles.clouds import CloudOracle
from tests.sim.oracles.money import MoneyOracle
from tests.sim.oracles.record import RecordOracle
from tests.sim.oracles.waste import WasteOracle
from tests.sim.world import SimWorld

__all__ = ["Oracles", "Violation", "ViolationError"]

LOOK_S = 10.0  # between looks at who is whose
READ_S = 60.0  # between readings of a record that nobody has decided anything about


class Oracles:
    """All of them on one world; each raises ViolationError out of the event that broke its word."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.bucket = BucketOracle(world)
        self.clouds = CloudOracle(world)
        self.money = MoneyOracle(world)
        self.record = RecordOracle(world, self.bucket, self.money)
        self.waste = WasteOracle(world)
        self._nodes: list[Node] = []
        self._ended: frozenset[str] = frozenset()  # jobs
        self._decisions, self._read_us = -1, 0
        self._look()

    def _look(self) -> None:
        self._world.kernel.after(LOOK_S, self._look)
        if not self._world.store_away:
            self._read()
            self.record.look(self._nodes)
            self.clouds.look(self._nodes, LOOK_S)
            self.waste.look(self._nodes, self._ended, LOOK_S)
        self.money.look(LOOK_S)

    def _read(self) -> None:
        """What is judged of the record (who is chosen, in which state, and what has ended) changes
        by decisions; in case it did not, it is read now and then all the same."""
        world, now_us = self._world, self._world.kernel.now_us
        if self._decisions == world.decisions and now_us < self._read_us + int(READ_S * 1e6):
            return
        self._decisions, self._read_us = world.decisions, now_us
        self._nodes = world.store.active_nodes()
        self._ended = frozenset(j.id for j in world.store.jobs() if j.outcome is not None)

    def judge_end(self) -> None:
        """After the calm: everything is done, told, and costs nothing any more."""
        self.waste.judge_end()
        self.record.judge_end()
