"""Check budgets: alert at thresholds, and pause jobs at the limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from providers.dollars import format_microusd
from spotd.base.clock import Clock
from spotd.domain.datasets import DataSet
from spotd.domain.events import Event, Severity
from spotd.domain.job import Desired
from spotd.domain.units import DAY_US, US_PER_H
from spotd.money.budget import ACTUAL, Budget, BudgetStatus, budget_status, crossings, top_spenders
from spotd.money.focus import iso, month_of
from spotd.money.outliers import outliers
from spotd.observe.job_limits import tell_of_jobs
from spotd.observe.storage_costs import record_carriage
from spotd.store.budget_queries import OVERRIDE, carried, override_key, spendings
from spotd.store.interface import Store

FORETELL_EVERY_US = US_PER_H // 6  # it reads all reports and checkpoints of what runs


class Budgets:
    """The periodic task.

    `budgets()` are the configured ones, `places()` is where stores are, `datasets()` the data sets.
    With `dry_run()` outliers are only alerted.
    """

    def __init__(
        self,
        budgets: Callable[[], Sequence[Budget]],
        clock: Clock,
        dry_run: Callable[[], bool] = lambda: True,
        places: Callable[[], Mapping[str, tuple[str, ...]]] = dict,
        datasets: Callable[[], Mapping[str, DataSet]] = dict,
    ) -> None:
        self._budgets = budgets
        self._places, self._datasets = places, datasets
        self._dry_run = dry_run
        self._judged_us = 0  # outliers, by this daemon: it reads all of the ledger
        self._foretold_us = 0  # what jobs will cost: it reads all their reports
        self._clock = clock

    def keep(self, store: Store) -> None:
        """Check once. State is only in the recorded events."""
        budgets, now_us = self._budgets(), self._clock.now_us()
        foretell = now_us - self._foretold_us >= FORETELL_EVERY_US
        if foretell:
            record_carriage(store, self._places(), now_us, self._datasets())
        tell_of_jobs(store, now_us, foretell=foretell)
        if foretell:
            self._foretold_us = now_us
        if now_us - self._judged_us >= US_PER_H:
            judge_outliers(store, now_us, dry_run=self._dry_run())
            self._judged_us = now_us
        if not budgets:
            return
        month = month_of(now_us)
        rows, extra = spendings(store, now_us), carried(store, month[0])
        alerted = store.events.keys("budget", month[0])
        for budget in budgets:
            status = budget_status(budget, rows, month, now_us, extra)
            jobs = _named(store, top_spenders(budget, rows, month, now_us))
            for crossing in crossings(status, alerted, iso, jobs):
                beyond = crossing.kind == ACTUAL or crossing.percent >= 100
                severity = Severity.WARNING if beyond else Severity.INFO
                event = Event(
                    "budget",
                    crossing.text,
                    "",
                    severity,
                    alert=True,
                    key=crossing.key,
                    route=crossing.route,
                )
                store.events.add("", event, now_us)
            if status.spent_microusd >= budget.microusd:
                _stop(store, status, now_us)


def _named(store: Store, spenders: Sequence[tuple[str, int]]) -> list[str]:
    names = store.jobs.names([job_id for job_id, _ in spenders])
    return [f"{names.get(job_id, job_id)} ({format_microusd(sum_)})" for job_id, sum_ in spenders]


def judge_outliers(store: Store, now_us: int, *, dry_run: bool) -> None:
    """Alert once a day on jobs that spent far more in a day than their project's jobs do.

    Without `dry_run` they are paused like by a person, so training saves first.
    """
    alerted = store.events.keys("outlier", now_us - DAY_US)
    for outlier in outliers(spendings(store, now_us), now_us):
        job, key = store.jobs.find(outlier.job_id), f"outlier:{outlier.job_id}"
        if (
            job is None
            or job.outcome is not None
            or job.desired is not Desired.RUN
            or key in alerted
        ):
            continue
        usual = outlier.usual
        whose = f"of the project {outlier.project}" if outlier.project else "without a project"
        text = (
            f"{job.name} of {outlier.user or 'nobody'} spent {format_microusd(outlier.microusd)} "
            f"in 24 h, and jobs {whose} {format_microusd(usual.median_microusd)} a day (median of "
            f"{usual.days} days; beyond {format_microusd(usual.bound_microusd)} causes an alert): "
        )
        if dry_run:
            text += "with dry_run = false in [policies] it would save and be paused"
        else:
            text += f"it saves and is paused; continue it with `spotctl resume {job.name}`"
        event = Event("outlier", text, severity=Severity.WARNING, alert=True, key=key)
        if dry_run:
            store.events.add(job.id, event, now_us)
        else:
            store.jobs.pause(job.id, event, now_us)


def _stop(store: Store, status: BudgetStatus, now_us: int) -> None:
    """Pause the budget's jobs like a person would: training saves first and can be resumed."""
    overridden = store.events.keys(OVERRIDE, status.since_us)
    owners = store.jobs.owners()
    for job in store.jobs.rows(finished=False):
        if job.desired is not Desired.RUN or not status.budget.covers(
            owners.get(job.id, ""), job.spec.queue.project
        ):
            continue
        if override_key(job.id) in overridden:
            continue
        text = (
            f"{job.name} is paused: the budget {status.budget.name} of "
            f"{format_microusd(status.budget.microusd)} a month is used up; it saves first, and "
            f"continues with `spotctl resume {job.name}` next month, or with --override-budget now"
        )
        key = f"budget_stop:{job.id}"
        event = Event("budget_stop", text, severity=Severity.ERROR, alert=True, key=key)
        store.jobs.pause(job.id, event, now_us)
