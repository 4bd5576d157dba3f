"""Compare the ledger with a bill: machines that are in both, or in only one."""

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
    """A machine in the ledger and the bill, or in one of them; then the other amount is 0.

    `complete`: it has ended, and its whole life is within the time of the bill, so that the bill is
    final for it.
    """

    key: str
    what: str
    node_id: str
    job_id: str
    billed_microusd: int
    ledger_microusd: int
    complete: bool = False

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
        return sum(match.billed_microusd for match in (*self.matched, *self.unknown))

    @property
    def unexplained_microusd(self) -> int:
        """The sum of all differences.

        That is GPU spending that only the bill has, spending that only the ledger has, and the
        absolute differences of machines that are in both.
        """
        every = (*self.matched, *self.unknown, *self.missing)
        return sum(abs(match.difference_microusd) for match in every)

    @property
    def share(self) -> float:
        """Return the unexplained share of the bill, or of the ledger if nothing was billed.

        It may be over 1.
        """
        total_microusd = self.billed_microusd or sum(
            match.ledger_microusd for match in self.missing
        )
        return self.unexplained_microusd / total_microusd if total_microusd > 0 else 0.0

    @property
    def alerts(self) -> bool:
        return self.share > ALERT_ABOVE


def reconcile(
    bill: Sequence[Entry], booked: Sequence[LedgerSegment], now_us: int, credits_microusd: int = 0
) -> Outcome:
    """Match the bill and the ledger by machine id, within the time of the bill.

    `credits_microusd` are the bill's credits that name none of its machines.
    """
    outcome = Outcome(
        credits_microusd=credits_microusd + sum(entry.credit_microusd for entry in bill)
    )
    if not bill:
        return outcome
    outcome.since_us = min(entry.start_us for entry in bill)
    outcome.until_us = max(entry.end_us for entry in bill)
    rows_by_machine: dict[str, list[LedgerSegment]] = {}
    for segment in booked:
        start_us, end_us = segment.stretch.within(outcome.since_us, outcome.until_us)
        if start_us < end_us and segment.instance_id:
            rows_by_machine.setdefault(key_of(segment.instance_id), []).append(segment)
    for entry in bill:
        rows = rows_by_machine.pop(entry.key, [])
        if rows:
            _match(outcome, entry, rows, booked, now_us)
        elif entry.gpu:
            outcome.unknown.append(Match(entry.key, entry.what, "", "", entry.cost_microusd, 0))
        else:
            outcome.others_microusd += entry.cost_microusd
    for key, rows in rows_by_machine.items():
        spent = _estimate(rows, outcome.since_us, outcome.until_us)
        if spent:
            outcome.missing.append(Match(key, "", rows[0].node_id, rows[0].job_id, 0, spent))
    return outcome


def _match(
    outcome: Outcome,
    entry: Entry,
    rows: Sequence[LedgerSegment],
    booked: Sequence[LedgerSegment],
    now_us: int,
) -> None:
    every = [segment for segment in booked if segment.node_id in {row.node_id for row in rows}]
    complete = all(
        not segment.stretch.running
        and outcome.since_us <= segment.stretch.start_us
        and segment.stretch.end_us <= min(outcome.until_us, now_us)
        for segment in every
    )
    spent = _estimate(rows, outcome.since_us, outcome.until_us)
    first, billed = rows[0], entry.cost_microusd
    outcome.matched.append(
        Match(entry.key, entry.what, first.node_id, first.job_id, billed, spent, complete)
    )
    if complete:
        weights = [
            _rated(segment, segment.stretch.start_us, segment.stretch.end_us) for segment in rows
        ]
        if not sum(weights):
            weights = [segment.stretch.end_us - segment.stretch.start_us for segment in rows]
        parts = share_out(billed, weights)
        outcome.invoiced |= {
            segment.number: part for segment, part in zip(rows, parts, strict=True)
        }


def _estimate(rows: Sequence[LedgerSegment], since_us: int, until_us: int) -> int:
    return sum(_rated(segment, since_us, until_us) for segment in rows)


def _rated(segment: LedgerSegment, since_us: int, until_us: int) -> int:
    """Return the cost by price and time, whatever an earlier bill has."""
    return segment.stretch.at_rate(segment.stretch.rate_microusd_per_h, since_us, until_us)


def outcome_data(outcome: Outcome, names: Mapping[str, str]) -> dict[str, object]:
    """Return the outcome as JSON; `names` are the jobs'."""

    def match_data(match: Match) -> dict[str, object]:
        return {
            "machine": match.key,
            "what": match.what,
            "node_id": match.node_id,
            "job": names.get(match.job_id, match.job_id),
            "billed_usd": match.billed_microusd / 1e6,
            "ledger_usd": match.ledger_microusd / 1e6,
            "difference_usd": match.difference_microusd / 1e6,
            "reconciled": match.complete,
        }

    return {
        "matched": [match_data(match) for match in outcome.matched],
        "unknown": [match_data(match) for match in outcome.unknown],
        "missing": [match_data(match) for match in outcome.missing],
        "billed_usd": outcome.billed_microusd / 1e6,
        "others_usd": outcome.others_microusd / 1e6,
        "credits_usd": outcome.credits_microusd / 1e6,
        "unexplained_usd": outcome.unexplained_microusd / 1e6,
        "unexplained": round(outcome.share, 6),
        "alerts": outcome.alerts,
        "segments": len(outcome.invoiced),
    }
