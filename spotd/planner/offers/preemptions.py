"""Turn a job that is preempted repeatedly to offers that are preempted less.

Counted from the record: attempts that a preemption caused, and refusals of the offers that the
job's machines were taken from. How often such a job saves follows from
planner/core/checkpoint_interval.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from providers.base import CapacityType, Offer
from spotd.domain.job import Attempt
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.node_history import LOSSES
from spotd.domain.states import LeaveReason
from spotd.domain.units import S

MANY = 3
WITHIN_S = 3600.0


def preemptions_lately(attempts: Iterable[Attempt], now_us: int) -> int:
    """Return how many attempts of the last hour replaced a preempted machine."""
    since_us = now_us - int(WITHIN_S * S)
    taken = [a for a in attempts if a.cause == LeaveReason.PREEMPTED.value]
    return sum(1 for attempt in taken if attempt.opened_at_us > since_us)


def interruptions(attempts: Iterable[Attempt], current: Iterable[Node]) -> int:
    """Return how often the job's machines were preempted or lost in all.

    `current` are the machines of the newest attempt, whose interruption may be in progress.
    """
    causes = {reason.value for reason in LOSSES}
    now = any(node.chosen and node.departure.leave_reason in LOSSES for node in current)
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
    """Return whether the offer may be preempted in the same way, so that others rank before it."""
    return offer.capacity_type is CapacityType.SPOT and offer.provider in providers
