"""Compare the ledger with a bill: what both have, and what only one has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotd.money.billing_exports import Entry, key_of
from spotd.money.hour_breakdown import Segment
from spotd.money.units import share_out

ALERT_ABOVE = 0.01  # of what was billed


@dataclass(frozen=True)
class LedgerSegment:
    """A segment of the ledger with its machine; `number` is the segment's."""

    number: int
    instance_id: str
    node_id: str
    job_id: str
    stretch: Segment


@dataclass(frozen=True)
class Match:
    """A machine on both sides, or on one: then the other amount is 0. `whole`: all of it lies in
    the time of the bill, and has ended, so that the bill is final for it."""

    key: str
    what: str
    node_id: str
    job_id: str
    billed_microusd: int
    ledger_microusd: int
    whole: bool = False

    @property
    def difference_microusd(self) -> int:
        return self.billed_microusd - self.ledger_microusd


@dataclass
class Outcome:
    """The comparison with one bill.

    `invoiced` is what each segment cost by it. `unknown` are machines with GPUs that the ledger
    lacks, `missing` those that the bill lacks, `others_microusd` foreign machines without GPUs. All
    amounts are before credits; `credits_microusd` is what those took off in all, 0 or less.
    """

    since_us: int = 0
    until_us: int = 0
    matched: list[Match] = field(default_factory=list)
    unknown: list[Match] = field(default_factory=list)
    missing: list[Match] = field(default_factory=list)
    others_microusd: int = 0
    credits_microusd: int = 0
    invoiced: dict[int, int] = field(default_factory=dict)

    @property
    def billed_microusd(self) -> int:
        return sum(one.billed_microusd for one in (*self.matched, *self.unknown))

    @property
    def unexplained_microusd(self) -> int:
        """GPU spend of the bill that the ledger does not know, spend of the ledger that the bill
        does not, and by how much the two differ where both know."""
        every = (*self.matched, *self.unknown, *self.missing)
        return sum(abs(one.difference_microusd) for one in every)

    @property
    def share(self) -> float:
        """Return the unexplained share of the bill, or of the ledger if nothing was billed.

        It may be over 1.
        """
        whole = self.billed_microusd or sum(one.ledger_microusd for one in self.missing)
        return self.unexplained_microusd / whole if whole > 0 else 0.0

    @property
    def alerts(self) -> bool:
        return self.share > ALERT_ABOVE


def reconcile(
    bill: Sequence[Entry], booked: Sequence[LedgerSegment], now_us: int, credits_microusd: int = 0
) -> Outcome:
    """Match by the machine's id, within the time of the bill. `credits_microusd` are those of the
    bill that name none of its machines."""
    made = Outcome(credits_microusd=credits_microusd + sum(one.credit_microusd for one in bill))
    if not bill:
        return made
    made.since_us = min(entry.start_us for entry in bill)
    made.until_us = max(entry.end_us for entry in bill)
    ours: dict[str, list[LedgerSegment]] = {}
    for one in booked:
        start_us, end_us = one.stretch.within(made.since_us, made.until_us)
        if start_us < end_us and one.instance_id:
            ours.setdefault(key_of(one.instance_id), []).append(one)
    for entry in bill:
        rows = ours.pop(entry.key, [])
        if rows:
            _match(made, entry, rows, booked, now_us)
        elif entry.gpu:
            made.unknown.append(Match(entry.key, entry.what, "", "", entry.cost_microusd, 0))
        else:
            made.others_microusd += entry.cost_microusd
    for key, rows in ours.items():
        spent = _estimate(rows, made.since_us, made.until_us)
        if spent:
            made.missing.append(Match(key, "", rows[0].node_id, rows[0].job_id, 0, spent))
    return made


def _match(
    made: Outcome,
    entry: Entry,
    rows: Sequence[LedgerSegment],
    booked: Sequence[LedgerSegment],
    now_us: int,
) -> None:
    every = [one for one in booked if one.node_id in {row.node_id for row in rows}]
    whole = all(
        not one.stretch.running
        and made.since_us <= one.stretch.start_us
        and one.stretch.end_us <= min(made.until_us, now_us)
        for one in every
    )
    spent = _estimate(rows, made.since_us, made.until_us)
    first, billed = rows[0], entry.cost_microusd
    made.matched.append(
        Match(entry.key, entry.what, first.node_id, first.job_id, billed, spent, whole)
    )
    if whole:
        weights = [_rated(one, one.stretch.start_us, one.stretch.end_us) for one in rows]
        if not sum(weights):
            weights = [one.stretch.end_us - one.stretch.start_us for one in rows]
        parts = share_out(billed, weights)
        made.invoiced |= {one.number: part for one, part in zip(rows, parts, strict=True)}


def _estimate(rows: Sequence[LedgerSegment], since_us: int, until_us: int) -> int:
    return sum(_rated(one, since_us, until_us) for one in rows)


def _rated(one: LedgerSegment, since_us: int, until_us: int) -> int:
    """Return the cost by price and time, whatever an earlier bill said."""
    return one.stretch.at_rate(one.stretch.rate_microusd_per_h, since_us, until_us)


def outcome_data(made: Outcome, names: Mapping[str, str]) -> dict[str, object]:
    """Return the outcome as JSON; `names` are the jobs'."""

    def told(one: Match) -> dict[str, object]:
        return {
            "machine": one.key,
            "what": one.what,
            "node_id": one.node_id,
            "job": names.get(one.job_id, one.job_id),
            "billed_usd": one.billed_microusd / 1e6,
            "ledger_usd": one.ledger_microusd / 1e6,
            "difference_usd": one.difference_microusd / 1e6,
            "reconciled": one.whole,
        }

    return {
        "matched": [told(one) for one in made.matched],
        "unknown": [told(one) for one in made.unknown],
        "missing": [told(one) for one in made.missing],
        "billed_usd": made.billed_microusd / 1e6,
        "others_usd": made.others_microusd / 1e6,
        "credits_usd": made.credits_microusd / 1e6,
        "unexplained_usd": made.unexplained_microusd / 1e6,
        "unexplained": round(made.share, 6),
        "alerts": made.alerts,
        "segments": len(made.invoiced),
    }
