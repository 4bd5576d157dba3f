"""Alert on the spending of jobs, and on their expected spending, against `max_cost_usd`.

Each threshold alerts once, by its own route.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from providers.dollars import format_microusd, format_usd
from spotd.domain.events import Event, Severity
from spotd.domain.job import Job
from spotd.domain.units import US_PER_H
from spotd.history.completion_estimate import CompletionEstimate, estimate_completion
from spotd.money.budget import ACTUAL, FORECAST, new_job_alerts
from spotd.money.focus import iso
from spotd.store.budget_queries import carried_by
from spotd.store.events import EventRow
from spotd.store.interface import Store
from spotd.store.job_history import facts_of

REACHED, FORETOLD = "cost_reached", "cost_forecast"  # kinds of events
_KINDS = {REACHED: ACTUAL, FORETOLD: FORECAST}


def tell_of_jobs(store: Store, now_us: int, *, foretell: bool) -> None:
    """Check every job with such a limit.

    With `foretell` the expected cost is computed from the record, for jobs whose amount of work is
    known.
    """
    capped = [job for job in store.jobs.rows(finished=False) if job.spec.limits.max_cost_microusd]
    if not capped:
        return
    market = store.market.load(now_us) if foretell else None
    views = store.load_views([job.id for job in capped], now_us)
    carried = carried_by(store)
    for view in views.values():
        job = view.job
        estimate = None
        if market is not None and job.spec.preferences.measurable:
            estimate = estimate_completion(facts_of(store, job, market, now_us))
        cost, each_h = carried.get(job.id, (0, 0))
        rate = sum(node.offer.price_microusd_per_h for node in view.nodes if node.active)
        rate += each_h if rate else 0
        ends = _ends(estimate, cost, each_h) if estimate else None
        for event in _events(store, job, view.spent_microusd, rate, ends, now_us):
            store.events.add(job.id, event, now_us)


def _ends(estimate: CompletionEstimate, cost: int, each_h: int) -> tuple[int, int, int] | None:
    """Return the expected cost of the job at its end.

    Its machines, its checkpoints so far, and further checkpoints at the recent rate.
    """
    machines, done = estimate.final_microusd, estimate.completion
    if machines is None or done is None:
        return None
    hours = (done.hours.low, done.hours.middle, done.hours.high)
    low, middle, high = (
        end + cost + round(each_h * hour) for end, hour in zip(machines, hours, strict=True)
    )
    return low, middle, high


def _events(
    store: Store,
    job: Job,
    spent: int,
    rate: int,
    ends: tuple[int, int, int] | None,
    now_us: int,
) -> Iterator[Event]:
    most = job.spec.limits.max_cost_microusd
    rows: Sequence[EventRow] = store.events.of_kinds(job.id, list(_KINDS))
    alerted = {(_KINDS[row.event.kind], _percent_of(row.event)) for row in rows}
    new = new_job_alerts(
        spent, ends[1] if ends else None, most, alerted, job.spec.limits.caps.route
    )
    for kind, percent in new:
        if kind == ACTUAL:
            text = (
                f"{job.name} has spent {percent} % of its max_cost_usd: {format_microusd(spent)} "
                f"of {format_microusd(most)}, {format_microusd(rate)}/h now"
            )
            if rate and spent < most:
                text += f", used up on {iso(now_us + (most - spent) * US_PER_H // rate)[:16]}Z"
        else:
            text = _foretold(job, spent, ends or (0, 0, 0), percent)
        yield Event(
            REACHED if kind == ACTUAL else FORETOLD,
            text,
            severity=Severity.WARNING if percent == 100 else Severity.INFO,
            alert=True,
            key=f"{kind}:{job.id}:{percent}",
            data={"percent": percent},
            route=job.spec.limits.caps.route(percent),
        )


def _foretold(job: Job, spent: int, ends: tuple[int, int, int], percent: int) -> str:
    low, middle, high = (end / 1e6 for end in ends)
    return (
        f"{job.name} will have spent {percent} % of its max_cost_usd of "
        f"{format_microusd(job.spec.limits.max_cost_microusd)} by its end: "
        f"{format_microusd(spent)} so far, {format_usd(middle)} expected (nine of ten: "
        f"{format_usd(low)} to {format_usd(high)}); spotctl cost {job.name}"
    )


def _percent_of(event: Event) -> int:
    percent = event.data.get("percent", 0)
    return percent if isinstance(percent, int) else 0
