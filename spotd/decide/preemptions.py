"""A job that is preempted again and again turns to where that is rarer. (How often it saves follows
from decide/cadence.py.)

Counted from what is on record: attempts that a preemption was the cause of, and refusals of the
offers that the job's own machines were taken from.
"""

from __future__ import annotations

from collections.abc import Iterable

from providers.base import CapacityType, Offer
from spotd.model import Attempt, LeaveReason, Market, Node, S
from spotd.past import LOSSES

MANY = 3
WITHIN_S = 3600.0


def preemptions_lately(attempts: Iterable[Attempt], now_us: int) -> int:
    """How many attempts of the last hour replaced a machine that was taken away."""
    since_us = now_us - int(WITHIN_S * S)
    taken = [a for a in attempts if a.cause == LeaveReason.PREEMPTED.value]
    return sum(1 for attempt in taken if attempt.opened_at_us > since_us)


def interruptions(attempts: Iterable[Attempt], current: Iterable[Node]) -> int:
    """How often the job's machines were taken away or lost in all: what attempts were opened for,
    and what is happening to `current`, the machines of the newest one."""
    causes = {reason.value for reason in LOSSES}
    now = any(node.chosen and node.leave_reason in LOSSES for node in current)
    return sum(1 for attempt in attempts if attempt.cause in causes) + now


def takers(job_id: str, market: Market, now_us: int) -> frozenset[str]:
    """The providers that took this job's machines away in the last hour."""
    since_us = now_us - int(WITHIN_S * S)
    return frozenset(
        refusal.offer_key.partition("/")[0]
        for refusal in market.refusals
        if refusal.code == "Preempted"
        and refusal.at_us > since_us
        and refusal.node_id.startswith(f"{job_id}-g")
    )


def shunned(offer: Offer, providers: frozenset[str]) -> bool:
    """It may be taken away in the same way: others come first, those on demand among them."""
    return offer.capacity_type is CapacityType.SPOT and offer.provider in providers
