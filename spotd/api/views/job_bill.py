"""What a job cost, and what it would have cost on demand: pure, from the ledger's rows.

Two counterfactuals, both an upper bound of honesty rather than of praise:

* **discount**: the hours we paid for, at the on-demand price of the same machine in the same place.
  Nobody can save more than that.
* **saving**: only the hours that on-demand would have needed. Time that preemptions cost us
  (hand-over overlap, boots after the first, replayed steps) is paid here and would not have been
  paid there. Known only when the program reports its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from providers.base import PREPAID
from spotd.money.units import cost_microusd
from spotd.store.interface import ProgressRow, SegmentRow

_WHOLE: Mapping[int, int] = {}  # each attempt had all the machines that the job asks for


def duration_us(segment: SegmentRow, now_us: int) -> int:
    """How long the segment has been counted for. A void one, for nothing."""
    return max(0, _end_us(segment, now_us) - segment.start_us)


def spend_microusd(segment: SegmentRow, now_us: int) -> int:
    """What the segment has cost up to `now_us`."""
    return cost_microusd(segment.rate_microusd_per_h, segment.start_us, _end_us(segment, now_us))


def _end_us(segment: SegmentRow, now_us: int) -> int:
    return segment.start_us if segment.state == "void" else segment.end_us or now_us


@dataclass(frozen=True)
class Bill:
    """Sums over segments. `list_` and `best_` price the same hours on demand: of the same machine
    in the same place, and of the cheapest place that has such a machine. `estimated` while
    something still runs or its launch is unconfirmed. Hours of `prepaid_us`, out of a reservation
    that costs the same without them, are in none of these sums: they cost nothing more, and that is
    no saving."""

    paid_us: int
    spend_microusd: int
    list_microusd: int
    best_microusd: int
    estimated: bool
    prepaid_us: int = 0

    @property
    def discount(self) -> float | None:
        """Fraction below the on-demand price of the same hours; None when nothing was listed."""
        return 1 - self.spend_microusd / self.list_microusd if self.list_microusd else None


def bill(segments: Sequence[SegmentRow], now_us: int) -> Bill:
    """The sums of these segments at `now_us`."""
    listed, best = 0, 0
    for row in segments:
        if row.price_source == PREPAID:
            continue
        end_us = _end_us(row, now_us)
        listed += cost_microusd(row.list_rate_microusd_per_h, row.start_us, end_us)
        best += cost_microusd(row.best_on_demand_microusd_per_h, row.start_us, end_us)
    return Bill(
        paid_us=sum(duration_us(row, now_us) for row in segments),
        spend_microusd=sum(spend_microusd(row, now_us) for row in segments),
        list_microusd=listed,
        best_microusd=best,
        estimated=any(row.state in ("open", "unknown") for row in segments),
        prepaid_us=sum(duration_us(row, now_us) for row in segments if row.price_source == PREPAID),
    )


def all_reports(progress: Sequence[ProgressRow], first_step_at_us: int) -> Sequence[ProgressRow]:
    """The reports of a job whose first one was heard at `first_step_at_us`; none when that one is
    no longer on record: history is pruned, and of what is left nothing can be said."""
    if progress and min(row.at_us for row in progress) > first_step_at_us:
        return []
    return progress


def useful_us(
    progress: Sequence[ProgressRow], num_nodes: int = 1, gangs: Mapping[int, int] = _WHOLE
) -> int:
    """Machine time of training whose steps survive: what a newer run trained again does not count.
    Each stretch lies within one node's clock, so that it does not matter whether that is right, nor
    when we heard of it. `gangs` has the attempts with another number of machines than `num_nodes`.
    """
    total, floor = 0, None
    for rows in reversed(_runs(progress)):
        first, last = rows[0].from_step, max(row.to_step for row in rows)
        span = max(row.last_at_us for row in rows) - min(row.first_at_us for row in rows)
        kept_to = last if floor is None else min(last, floor - 1)
        kept = max(0, kept_to - first + 1)
        machines = gangs.get(rows[0].generation, num_nodes)
        total += machines * span * kept // max(1, last - first + 1)
        floor = first if floor is None else min(floor, first)
    return total


def _runs(progress: Sequence[ProgressRow]) -> list[list[ProgressRow]]:
    """Reports in the order of training, divided where it went back to an earlier step: in a newer
    generation, or in a program that was begun again on its machine."""
    found: list[list[ProgressRow]] = []
    for row in sorted(progress, key=lambda row: row.generation):  # stable: as they were recorded
        last = found[-1][-1] if found else None
        goes_on = last is not None and last.generation == row.generation
        if last is None or not goes_on or row.from_step <= last.to_step:
            found.append([])
        found[-1].append(row)
    return found


@dataclass(frozen=True)
class OnDemand:
    """What the surviving work and one start would have cost on demand: `list_` in the places that
    the job was in, at the average of the hours we paid for; `best_` in the cheapest place that has
    such a machine. Never more than the same sums of the bill."""

    list_microusd: int
    best_microusd: int


def on_demand(
    total: Bill,
    segments: Sequence[SegmentRow],
    progress: Sequence[ProgressRow],
    num_nodes: int,
    gangs: Mapping[int, int] = _WHOLE,
) -> OnDemand | None:
    """The counterfactual of the bill `total`; None when it is not known. `gangs` as above."""
    if not progress or total.prepaid_us >= total.paid_us:
        return None
    startup_us = _startup_us(segments, progress) * num_nodes
    needed_us = useful_us(progress, num_nodes, gangs) + startup_us
    counted_us = min(needed_us, total.paid_us)
    return OnDemand(
        list_microusd=total.list_microusd * counted_us // total.paid_us,
        best_microusd=total.best_microusd * counted_us // total.paid_us,
    )


def _startup_us(segments: Sequence[SegmentRow], progress: Sequence[ProgressRow]) -> int:
    """From the start of the newest machine before the first step to that step. Machines that were
    lost before it, and waiting for the next one, are not what a start on demand takes."""
    first_us = _first_step_us(progress)
    begins: dict[str, int] = {}  # a machine's, whose segments follow one another
    for row in segments:
        if row.state != "void":
            begins[row.node_id] = min(row.start_us, begins.get(row.node_id, row.start_us))
    return first_us - max((at for at in begins.values() if at <= first_us), default=first_us)


def _first_step_us(progress: Sequence[ProgressRow]) -> int:
    """When the first step was made, by our clock, which the segments are counted by. How far the
    node's clock is off is told by the report that was heard soonest after it was made."""
    found = []
    for generation in {row.generation for row in progress}:
        rows = [row for row in progress if row.generation == generation]
        behind_us = min(row.at_us - row.last_at_us for row in rows)
        found.append(min(row.first_at_us for row in rows) + behind_us)
    return min(found)
