"""The cost of a job, and its cost on demand, computed from the ledger's rows. Pure.

Two counterfactuals, both chosen to understate the benefit of spot:

* **discount**: the hours we paid for, at the on-demand price of the same machine in the same place.
  Nothing can save more than that.

* **saving**: only the hours that on-demand would have needed. Time that preemptions cost us
  (hand-over overlap, boots after the first, replayed steps) is paid here and would not have been
  paid there. Known only when the program reports its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from providers.base import PREPAID
from spotd.money.units import cost_microusd
from spotd.store.ledger import SegmentRow
from spotd.store.progress import ProgressRow

_WHOLE: Mapping[int, int] = {}  # each attempt had all the machines that the job requests


def duration_us(segment: SegmentRow, now_us: int) -> int:
    """Return how long the segment has been paid for; 0 for a void segment."""
    return max(0, _end_us(segment, now_us) - segment.start_us)


def spend_microusd(segment: SegmentRow, now_us: int) -> int:
    """Return the cost of the segment up to `now_us`."""
    return cost_microusd(segment.rate_microusd_per_h, segment.start_us, _end_us(segment, now_us))


def _end_us(segment: SegmentRow, now_us: int) -> int:
    return segment.start_us if segment.state == "void" else segment.end_us or now_us


@dataclass(frozen=True)
class Bill:
    """Sums over segments.

    `list_` and `best_` price the same hours on demand: for the same machine in the same place, and
    in the cheapest place that has such a machine. `estimated` is true while something still runs or
    its launch is unconfirmed. Hours of `prepaid_us` come from a reservation, which costs the same
    without them. They are in none of these sums: they add no cost, and are no saving.
    """

    paid_us: int
    spend_microusd: int
    list_microusd: int
    best_microusd: int
    estimated: bool
    prepaid_us: int = 0

    @property
    def discount(self) -> float | None:
        """The fraction below the on-demand price of the same hours; None when none was listed."""
        return 1 - self.spend_microusd / self.list_microusd if self.list_microusd else None


def bill(segments: Sequence[SegmentRow], now_us: int) -> Bill:
    """Return the sums of these segments at `now_us`."""
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
    """Return the progress reports of a job if they are complete, otherwise none.

    `first_step_at_us` is when the first report was received. When that report is no longer on
    record, history was pruned, and the remaining reports prove nothing.
    """
    if progress and min(row.at_us for row in progress) > first_step_at_us:
        return []
    return progress


def useful_us(
    progress: Sequence[ProgressRow], num_nodes: int = 1, gangs: Mapping[int, int] = _WHOLE
) -> int:
    """Return the machine time, in microseconds, of training whose steps survive.

    Steps that a newer run trained again do not count. Each run is measured by one node's clock, so
    neither an offset of that clock nor the delay of reports matters. `gangs` maps generations to
    their number of machines where it differs from `num_nodes`.
    """
    total, oldest_newer_step = 0, None
    for rows in reversed(_runs(progress)):
        first, last = rows[0].from_step, max(row.to_step for row in rows)
        span_us = max(row.last_at_us for row in rows) - min(row.first_at_us for row in rows)
        last_surviving = last if oldest_newer_step is None else min(last, oldest_newer_step - 1)
        surviving = max(0, last_surviving - first + 1)
        machines = gangs.get(rows[0].generation, num_nodes)
        total += machines * span_us * surviving // max(1, last - first + 1)
        oldest_newer_step = first if oldest_newer_step is None else min(oldest_newer_step, first)
    return total


def _runs(progress: Sequence[ProgressRow]) -> list[list[ProgressRow]]:
    """Return the reports in the order of training, split where it went back to an earlier step.

    That happens in a newer generation, or in a program that was restarted on its machine.
    """
    runs: list[list[ProgressRow]] = []
    for row in sorted(
        progress, key=lambda row: row.generation
    ):  # stable sort: keeps the recorded order
        last = runs[-1][-1] if runs else None
        same_generation = last is not None and last.generation == row.generation
        if last is None or not same_generation or row.from_step <= last.to_step:
            runs.append([])
        runs[-1].append(row)
    return runs


@dataclass(frozen=True)
class OnDemand:
    """The cost on demand of the surviving work and one start.

    `list_` is for the places that the job was in, at the average of the hours we paid for. `best_`
    is for the cheapest place that has such a machine. Never more than the same sums of the bill.
    """

    list_microusd: int
    best_microusd: int


def on_demand(
    total: Bill,
    segments: Sequence[SegmentRow],
    progress: Sequence[ProgressRow],
    num_nodes: int,
    gangs: Mapping[int, int] = _WHOLE,
) -> OnDemand | None:
    """Return the counterfactual of the bill `total`; None when it is not known.

    `gangs` is as in `useful_us`.
    """
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
    """Return the time from the start of the last machine before the first step to that step.

    An on-demand start would not include machines that were lost before it, nor the wait for the
    next one.
    """
    first_us = _first_step_us(progress)
    starts_us: dict[str, int] = {}  # by machine, whose segments follow one another
    for row in segments:
        if row.state != "void":
            starts_us[row.node_id] = min(row.start_us, starts_us.get(row.node_id, row.start_us))
    return first_us - max((at for at in starts_us.values() if at <= first_us), default=first_us)


def _first_step_us(progress: Sequence[ProgressRow]) -> int:
    """Return when the first step was made, by our clock, which also times the segments.

    The offset of the node's clock is estimated from the report with the smallest delay.
    """
    first_steps = []
    for generation in {row.generation for row in progress}:
        rows = [row for row in progress if row.generation == generation]
        offset_us = min(row.at_us - row.last_at_us for row in rows)
        first_steps.append(min(row.first_at_us for row in rows) + offset_us)
    return min(first_steps)
