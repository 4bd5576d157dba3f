"""Limits, checked in the transaction that commits the intent to launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from providers.dollars import format_microusd
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.queue import Limits, QueueSnapshot
from spotd.planner.queue.fair_share import no_room
from spotd.store.queue_snapshot import asking, placed


@dataclass(frozen=True)
class LimitUse:
    """The limits, the nodes and the cost per hour committed under them, and the queue.

    Nodes that are launching or of unknown state count.
    """

    limits: Limits
    nodes: int
    microusd_per_h: int
    line: QueueSnapshot = field(default_factory=QueueSnapshot)


class LimitRoom:
    """The nodes and the cost per hour that may still be launched.

    The first `take` calls `use`, which keeps others from launching until the transaction ends: two
    commits that launch are checked one after the other, in whatever process. `spent_microusd`
    returns a job's cost so far.
    """

    def __init__(self, use: Callable[[], LimitUse], spent_microusd: Callable[[str], int]) -> None:
        self._load = use
        self._spent_microusd = spent_microusd
        self._use: LimitUse | None = None

    def take(self, job: Job, user: str, added: Sequence[Node]) -> str:
        """Count `added` and return "", or count nothing and return the limit or the job ahead that
        prevents it.

        `user` is the job's user.
        """
        use = self._use = self._use or self._load()
        turn = asking(use.line, job, user, added)
        obstacle = no_room(use.limits, use.nodes, use.microusd_per_h, use.line, turn)
        if obstacle:
            return obstacle
        most = job.spec.limits.max_cost_microusd
        if most:
            spent = self._spent_microusd(job.id)
            if spent >= most:
                return (
                    f"{job.name} has spent {format_microusd(spent)} of its max_cost_usd "
                    f"of {format_microusd(most)}: submit it again with a higher one"
                )
        rate = use.microusd_per_h + turn.microusd_per_h
        self._use = LimitUse(use.limits, use.nodes + turn.nodes, rate, placed(use.line, turn))
        return ""
