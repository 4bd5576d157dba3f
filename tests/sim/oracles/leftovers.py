"""L3 of what machines leave behind: discarded where a row asked for it, told of where none did."""

from __future__ import annotations

from collections import Counter

from spotd.config.schedule import Schedule
from spotd.domain.states import NodeState
from spotd.planner.core.orphan_policy import GRACE_S
from tests.sim.cloud import Left
from tests.sim.oracles.base import Oracle
from tests.sim.world import SimWorld

LOOKS = 3  # that are heard: to see it, to have seen it for long enough, to be sure
SEEN_S = 3 * Schedule.leftovers_s + GRACE_S + 120.0  # while everybody is up
EVENTS = 100_000


class LeftoverOracle(Oracle):
    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._ages: Counter[str] = Counter()
        self._looks: dict[str, int] = {}  # of its cloud, when it was seen first
        self._told: set[str] = set()
        self._starts = 0  # of daemons
        for cloud in world.clouds.values():
            cloud.hear_discarded = self._discarded

    def look(self, passed_s: float) -> None:
        starts = sum(daemon.starts for daemon in self.world.daemons)
        if starts != self._starts:  # a new one has to see it for a while, too
            self._starts, self._ages, self._looks = starts, Counter(), {}
        for cloud in self.world.clouds.values():
            for ident, left in cloud.left.items():
                if ident not in self._told and self.everybody_up(left.rented):
                    self._count(ident, left, cloud.looks, passed_s)

    def _count(self, ident: str, left: Left, looks: int, passed_s: float) -> None:
        self._ages[ident] += int(passed_s)
        heard = looks - self._looks.setdefault(ident, looks)
        if self._ages[ident] <= SEEN_S or heard < LOOKS:
            return
        node = self.world.node_of(left.rented.token)
        if left.asked_for and node is not None and node.state is NodeState.GONE:
            self.fail(
                "L3", f"{ident} was left behind {self._ages[ident]} s ago, and is still there"
            )
        if not left.asked_for:
            rows = self.world.store.events.rows(None, 0, EVENTS)
            if not any(r.event.kind == "leftovers_held" and ident in r.event.text for r in rows):
                self.fail("L3", f"{ident} was left behind and is held, and nobody was told")
            self._told.add(ident)

    def _discarded(self, ident: str, left: Left) -> None:
        if not left.asked_for:
            self.fail("G1", f"{ident} is discarded, and no record ever asked for it")
