"""G1 of a database that knows less than the clouds: nobody is ended for being unknown to it."""

from __future__ import annotations

from tests.sim.cloud import Rented
from tests.sim.oracles.base import Oracle
from tests.sim.world import SimWorld


class RestoredOracle(Oracle):
    """Hears of every machine that is told to end."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        for cloud in world.clouds.values():
            cloud.hear_told(self._told_to_end)

    def _told_to_end(self, rented: Rented) -> None:
        if rented.told_by == "reaper" or self.world.node_of(rented.token) is not None:
            return
        if rented.created_us > self.world.released_us:
            text = "is ended, no record ever named it, and nobody said that it may go"
            self.fail("G1", f"{rented.id} {text}")
