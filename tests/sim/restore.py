"""A database that is replaced by an older copy of itself, and the person who looks into it."""

from __future__ import annotations

from tests.sim.memory.tables import Tables
from tests.sim.memory_store import MemoryStore
from tests.sim.world import SimWorld

LOOK_S = 60.0  # between looks of a person who was paged
MINUTE_S = 60.0


class Restoring:
    """What `spotctl db backup` and, after the box is lost, `spotd db restore` do."""

    def __init__(self, world: SimWorld) -> None:
        if not isinstance(world.store, MemoryStore):
            raise ValueError("only the store in memory can be put back: use --tier memory")
        self._world = world
        self._store = world.store
        self._random = world.faults.stream("restore")
        self._copy: Tables
        self._look_us = 0  # when the person will have looked; 0: was told of nothing

    def begin(self, storm_s: float) -> None:
        """Copy at some moment of the storm, and put the copy back at a later one."""
        kernel, random = self._world.kernel, self._random
        copied_s = random.uniform(0.1, 0.6) * storm_s
        lost_s = random.uniform(5 * MINUTE_S, 120 * MINUTE_S)
        kernel.after(copied_s, self._back_up)
        kernel.after(min(copied_s + lost_s, 0.9 * storm_s), self._restore)

    def _back_up(self) -> None:
        self._copy = self._store.snapshot()

    def _restore(self) -> None:
        """With every daemon stopped, as the command wants it."""
        world = self._world
        world.restored_us = world.kernel.now_us
        world.tell("an older copy takes the place of the database")
        for daemon in world.daemons:
            daemon.lost = True
            world.kernel.kill(daemon.process)
        self._store.restore(self._copy)
        self._store.deployment.set_quarantine("restored from a backup", world.kernel.now_us)
        world.kernel.after(self._random.uniform(10, 10 * MINUTE_S), self._start)
        world.kernel.after(LOOK_S, self._look)

    def _start(self) -> None:
        for daemon in self._world.daemons:
            daemon.lost = False
            daemon.start()

    def _look(self) -> None:
        """Ends the quarantine when it has seen what there is, some time after it was told of it,
        and lets go of what nobody wants; and again, when there is another one."""
        world, now_us = self._world, self._world.kernel.now_us
        world.kernel.after(LOOK_S, self._look)
        if world.store_away or not (self._store.deployment.quarantine() or not world.released_us):
            return
        if not self._look_us:
            longest_s = MINUTE_S if world.faults.calm else 60 * MINUTE_S
            self._look_us = now_us + int(self._random.uniform(MINUTE_S, longest_s + 1) * 1e6)
        elif now_us >= self._look_us:
            world.tell("a person ends the quarantine, and what nobody wants")
            self._look_us, world.released_us = 0, now_us
            self._store.deployment.set_quarantine("", now_us)
            for cloud in world.clouds:
                self._store.orphans.release(cloud, now_us)
