"""Order the jobs that wait for an unavailable offer: priority, then fair share, then age.

The first in the queue requests it; the next one does so when that request is answered
(planner/queue/fair_share.py has the order). For each job without an available offer, the time of
its next check is recorded: when the first excluded offer may return. Until that check, the offer is
reserved for it; after the check, the offer that it requests is reserved until the answer. Both
reservations are short, and exclude offers that the job cannot use or has declined. So one job in
the queue may always request, and soon the next.

A gang that was just refused lets jobs that need fewer machines request first, because fewer
machines may have returned than it needs. So does a job that was refused for its price cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from providers.base import Offer
from spotd.domain.job import Job
from spotd.domain.market import Market, Refusal, WaitingRequest
from spotd.domain.queue import QueueEntry
from spotd.domain.units import S
from spotd.planner.offers.cooldowns import (
    BASE_S,
    Spoiled,
    cooldown_until_us,
    spoiled_at,
    spoiled_places,
)
from spotd.planner.placement.rank import TURN, RankedOffer, could_run
from spotd.planner.queue.fair_share import ahead_by, named, sort_key

LOOKS_US = 120 * S  # reserved for a job that may request: it is due, and decided on within seconds
ANSWERS_US = 60 * S  # and for one that has asked: a create takes 10 s, or nobody knows how long
SCARCE_US = 3600 * S  # after it came back; cooldowns forget as fast
PATIENCE_US = 60 * S  # so long a job waits for its turn before it takes what it likes less
AGAIN_US = 2 * S  # between two looks, for each that is ahead
AGAIN_MOST_US = 30 * S
_LAST = 1 << 62


def in_turn(job: Job, market: Market, now_us: int, rows: list[RankedOffer]) -> list[RankedOffer]:
    """Return `rows` without the offers that jobs ahead request or are about to request."""
    if not any(asker.turn.job_id != job.id for asker in market.queue.requests):
        return rows
    mine, spoiled = _mine(job, market), spoiled_places(market.refusals, "")
    result = []
    for row in rows:
        ahead = []
        if not row.excluded and _scarce(
            row.offer, spoiled, job.spec.timeouts.boot_timeout_s, now_us
        ):
            ahead = _ahead(row.offer, mine, market, now_us, spoiled)
            ahead = [one for one in ahead if _now(one, market, now_us)]
        if ahead:
            until_us = now_us + min(AGAIN_US * len(ahead), AGAIN_MOST_US)
            why = _why(ahead[0], mine, row.offer, spoiled)
            does = "requests it now" if ahead[0].keys else "requests first"
            text = f"{named(ahead[0].turn)} {does}, ahead by {why}"
            row = replace(row, excluded=text, until_us=until_us, code=TURN)  # noqa: PLW2901
        result.append(row)
    return result


def patient(job: Job, now_us: int, rows: Sequence[RankedOffer]) -> bool:
    """Return whether another job's turn blocks its best offer and it has not waited long."""
    first = next((row for row in rows if not row.excluded or row.code == TURN), None)
    mine = first is not None and first.code == TURN
    return mine and now_us - (job.queue.waiting_since_us or now_us) < PATIENCE_US


def told_ahead(job: Job, market: Market, now_us: int, rows: Sequence[RankedOffer]) -> str:
    """Name the job that requests first when the next offer returns, or return ""."""
    back = [row for row in rows if row.until_us and row.code != TURN]
    row = min(back, key=lambda one: one.until_us, default=None)
    if row is None:
        return ""
    mine, spoiled = _mine(job, market), spoiled_places(market.refusals, "")
    ahead = _ahead(row.offer, mine, market, now_us, spoiled)
    if not ahead:
        return ""
    more = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
    why = _why(ahead[0], mine, row.offer, spoiled)
    return f"ahead of it for {row.offer.key}: {named(ahead[0].turn)}, by {why}{more}"


def asks_again_us(now_us: int, rows: Sequence[RankedOffer]) -> int:
    """Return when a job without an available offer checks again; 0 if no offer will return.

    A job blocked only by another's turn is ready at once.
    """
    back = [now_us if row.code == TURN else row.until_us for row in rows if row.until_us]
    return min(back, default=0)


def _mine(job: Job, market: Market) -> QueueEntry:
    """Return the job's queue entry; a new job is behind those of its priority."""
    known = (asker.turn for asker in market.queue.requests if asker.turn.job_id == job.id)
    new = QueueEntry(
        job.id,
        job.name,
        job.spec.resources.num_nodes,
        priority=job.spec.queue.priority,
        created_at_us=_LAST,
        used_microusd=(_LAST, _LAST),
    )
    return next(known, new)


def _scarce(offer: Offer, spoiled: Spoiled, boot_timeout_s: float, now_us: int) -> bool:
    until_us, _ = cooldown_until_us(offer, spoiled, boot_timeout_s)
    return until_us > 0 and now_us - until_us < SCARCE_US


def _ahead(
    offer: Offer, mine: QueueEntry, market: Market, now_us: int, spoiled: Spoiled
) -> list[WaitingRequest]:
    """Return the jobs before it that want the offer, the first one first."""
    wave = _last_wave(offer, spoiled)
    before = [
        asker
        for asker in market.queue.requests
        if _order(asker.turn, wave) < _order(mine, wave)
        and asker.turn.job_id != mine.job_id
        and (
            offer.key in asker.keys if asker.keys else could_run(asker.spec, offer, market, now_us)
        )
    ]
    return sorted(before, key=lambda one: _order(one.turn, wave))


def _now(one: WaitingRequest, market: Market, now_us: int) -> bool:
    """Return whether it is that job's turn now; nobody's while no daemon decides."""
    if one.keys:
        return now_us - one.at_us < ANSWERS_US
    since_us = max(one.at_us, market.uptime.started_at_us, market.uptime.listening_since_us)
    return one.at_us <= now_us < since_us + LOOKS_US


def _last_wave(offer: Offer, spoiled: Spoiled) -> list[Refusal]:
    """Return the last refusals there, of all jobs that had asked then."""
    refused = spoiled_at(offer, spoiled)
    last_us = max((one.at_us for one in refused), default=0)
    wave_us = int(BASE_S["CapacityError"] * S)
    return [one for one in refused if last_us - one.at_us < wave_us]


def _order(turn: QueueEntry, wave: Sequence[Refusal]) -> tuple[int, object]:
    return _late(turn, wave), sort_key(turn)


def _late(turn: QueueEntry, wave: Sequence[Refusal]) -> int:
    """The machines that it was refused as a gang, or one for a price; 0: neither."""
    ours = [refusal for refusal in wave if refusal.node_id.startswith(f"{turn.job_id}-g")]
    if turn.nodes > 1 and ours:
        return turn.nodes
    return int(any(refusal.code == "PriceError" for refusal in ours))


def _why(first: WaitingRequest, mine: QueueEntry, offer: Offer, spoiled: Spoiled) -> str:
    wave = _last_wave(offer, spoiled)
    if _late(first.turn, wave) < _late(mine, wave):
        return "this one's last try there, which was refused"
    if first.turn.priority == mine.priority and mine.created_at_us == _LAST:
        return "the time that it has waited"
    return ahead_by(first.turn, mine)
