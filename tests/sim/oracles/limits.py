"""B1 of the whole deployment: `limits.max_nodes` and `limits.max_usd_per_hour`, over all jobs."""

from __future__ import annotations

from spotd.domain.plan import AddNode, Plan
from spotd.domain.queue import Limits
from spotd.domain.states import NodeState
from spotd.domain.view import View
from tests.sim.cloud import Rented
from tests.sim.oracles.base import Oracle
from tests.sim.world import SimWorld

# Prices are asked for every five minutes, and in that time move by a tenth at most. What keeps a
# daemon from asking, or the clouds from answering, makes them older than that.
MOVE_SHARE = 0.1
OLD_PRICES = ("cloud_", "credentials", "store_", "daemon_", "boundary_", "commit_", "clock_")


class LimitOracle(Oracle):
    """Sees what is committed right after each decision to launch, and what lives at each create.

    Nobody ends a machine because prices rose or a limit was lowered: only what is added is judged.
    """

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        enabled = world.faults.enabled()
        self._prices_known = not any(name.startswith(OLD_PRICES) for name in enabled)
        for cloud in world.clouds.values():
            cloud.hear_created(self._created)

    @property
    def _limits(self) -> Limits:
        return self.world.limits

    def committed(self, _view: View, plan: Plan) -> None:
        """By the record: machines not gone, at the prices that it knows."""
        if self._limits == Limits() or not any(isinstance(c, AddNode) for c in plan.changes):
            return
        nodes = self.world.store.nodes.active()
        rate = sum(node.offer.price_microusd_per_h for node in nodes)
        self._judge("are committed", len(nodes), rate, self._limits.max_microusd_per_h)

    def _created(self, _rented: Rented) -> None:
        """By the clouds' books: what lives of what the record wants; the rest is an orphan (L1)."""
        if self._limits == Limits():
            return
        wanted = {n.token for n in self.world.store.nodes.active() if n.state is not NodeState.GONE}
        living = [r for c in self.world.clouds.values() for r in c.alive() if r.token in wanted]
        rate = sum(rented.prices[-1][1] for rented in living) if self._prices_known else 0
        most = int(self._limits.max_microusd_per_h * (1 + MOVE_SHARE))
        self._judge("live", len(living), rate, most)

    def _judge(self, what: str, nodes: int, rate: int, most: int) -> None:
        limits = self._limits
        if 0 < limits.max_nodes < nodes:
            self.fail("B1", f"{nodes} machines {what}, and max_nodes is {limits.max_nodes}")
        if limits.max_microusd_per_h > 0 and most < rate:
            text = f"{nodes} machines {what}, and cost {rate / 1e6:.2f} an hour"
            self.fail("B1", f"{text}: max_usd_per_hour is {limits.max_microusd_per_h / 1e6:.2f}")
