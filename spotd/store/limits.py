"""The spending limits, checked in the transaction that commits the intent to launch."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from spotd.model import Job, Limits, Node
from spotd.store import ledger, market, schema


class Room:
    """How much may still be launched. Counts launching and unknown nodes, at their current price.

    The first `take` locks the deployment's row until the transaction ends: two commits that launch
    are checked one after the other, whatever process they are in.
    """

    def __init__(self, conn: Connection, now_us: int) -> None:
        self._conn = conn
        self._now_us = now_us
        self._limits: Limits | None = None
        self._nodes = 0
        self._rate = 0

    def take(self, job: Job, added: Sequence[Node]) -> str:
        """Count `added` in and return "", or say which limit is in the way and count nothing."""
        limits = self._limits or self._load()
        nodes = self._nodes + len(added)
        rate = self._rate + sum(node.offer.price_microusd_per_h for node in added)
        if 0 < limits.max_nodes < nodes:
            return (
                f"limits.max_nodes is {limits.max_nodes} and {self._nodes} are in use: wait until "
                "one is gone, or raise the limit"
            )
        if 0 < limits.max_microusd_per_h < rate:
            return (
                f"limits.max_usd_per_hour is {limits.max_microusd_per_h / 1e6:.2f}, and this would "
                f"make it {rate / 1e6:.2f}: wait until a machine is gone, or raise the limit"
            )
        most = job.spec.max_cost_microusd
        if most:
            spent = ledger.spent_microusd(self._conn, [job.id], self._now_us).get(job.id, 0)
            if spent >= most:
                return (
                    f"{job.name} has spent ${spent / 1e6:.2f} of its max_cost_usd "
                    f"{most / 1e6:.2f}: submit it again with a higher one"
                )
        self._nodes, self._rate = nodes, rate
        return ""

    def _load(self) -> Limits:
        row = self._conn.execute(schema.deployment.select().with_for_update()).one()
        use = market.committed_use(self._conn)
        self._nodes, self._rate = use.nodes, int(use.rate)
        self._limits = Limits(row.max_nodes, row.max_microusd_per_h)
        return self._limits
