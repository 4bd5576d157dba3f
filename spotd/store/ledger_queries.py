"""Rows of the ledger, and reports of steps, as money is reckoned with."""

from __future__ import annotations

from providers.base import PREPAID
from spotd.domain.units import S
from spotd.money.hour_breakdown import Segment, Steps
from spotd.store.records import ProgressRow, SegmentRow


def stretch_of(row: SegmentRow, now_us: int) -> Segment:
    """A segment of the ledger, up to now where it still runs. A void one is not to be asked for."""
    return Segment(
        row.start_us,
        row.end_us or max(now_us, row.start_us),
        row.rate_microusd_per_h,
        row.list_rate_microusd_per_h,
        row.best_on_demand_microusd_per_h,
        price_source=row.price_source,
        running=not row.end_us,
        prepaid=row.price_source == PREPAID,
        reconciled=bool(row.reconciled_at_us),
        invoiced_microusd=row.invoiced_microusd,
    )


def steps_of(row: ProgressRow) -> Steps:
    """A report of steps, as its node made it and as it was heard."""
    times = (row.first_at_us, row.last_at_us, round(row.busy_s * S), row.at_us)
    return Steps(row.generation, row.from_step, row.to_step, *times)
