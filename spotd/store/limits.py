"""The spending limits, checked in the transaction that commits the intent to launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotd.model import Job, Limits, Node


@dataclass(frozen=True)
class Use:
    """The limits, and how much of them is committed: the machines not gone, launching and unknown
    ones included, and what they cost an hour."""

    limits: Limits
    nodes: int
    microusd_per_h: int


class Room:
    """How much may still be launched. Counts launching and unknown nodes, at their current price.

    The first `take` asks for the `use`, which keeps others from launching until the transaction
    ends: two commits that launch are checked one after the other, whatever process they are in.
    `spent_microusd` says what a job has cost.
    """

    def __init__(self, use: Callable[[], Use], spent_microusd: Callable[[str], int]) -> None:
        self._use = use
        self._spent_microusd = spent_microusd
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
            spent = self._spent_microusd(job.id)
            if spent >= most:
                return (
                    f"{job.name} has spent ${spent / 1e6:.2f} of its max_cost_usd "
                    f"{most / 1e6:.2f}: submit it again with a higher one"
                )
        self._nodes, self._rate = nodes, rate
        return ""

    def _load(self) -> Limits:
        use = self._use()
        self._nodes, self._rate = use.nodes, use.microusd_per_h
        self._limits = use.limits
        return use.limits
