"""The duty that looks after budgets: tells of thresholds, and has jobs stop at the limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotd.clock import Clock
from spotd.model import Desired, Event, Severity
from spotd.money.budget import ACTUAL, Budget, Standing, crossings, standing
from spotd.money.focus import iso, month_of
from spotd.store.base import Store
from spotd.store.spending import OVERRIDE, override_key, spendings

EVERY_S = 60.0


class Budgets:
    """`budgets()` are those of the configuration in force."""

    def __init__(self, budgets: Callable[[], Sequence[Budget]], clock: Clock) -> None:
        self._budgets = budgets
        self._clock = clock

    def keep(self, store: Store) -> None:
        """One look: nothing is remembered but in the record of events."""
        budgets, now_us = self._budgets(), self._clock.now_us()
        if not budgets:
            return
        month = month_of(now_us)
        rows = spendings(store, now_us)
        told = store.event_keys("budget", month[0])
        for budget in budgets:
            found = standing(budget, rows, month, now_us)
            for one in crossings(found, told, iso):
                severity = Severity.WARNING if one.kind == ACTUAL else Severity.INFO
                event = Event(
                    "budget", one.text, "", severity, alert=True, key=one.key, route=one.route
                )
                store.add_event("", event, now_us)
            if found.spent_microusd >= budget.microusd:
                _stop(store, found, now_us)


def _stop(store: Store, found: Standing, now_us: int) -> None:
    """Its jobs are paused, as by a person: training saves first, the machines are given back then,
    and the job goes on from there when it is resumed."""
    overridden = store.event_keys(OVERRIDE, found.since_us)
    owners = store.job_owners()
    for job in store.jobs(finished=False):
        if job.desired is not Desired.RUN or not found.budget.covers(
            owners.get(job.id, ""), job.spec.project
        ):
            continue
        if override_key(job.id) in overridden:
            continue
        store.set_desired(job.id, Desired.PAUSE, "spotd", now_us)
        text = (
            f"{job.name} is paused: the budget {found.budget.name} of "
            f"${found.budget.microusd / 1e6:,.2f} a month is used up; it saves first, and goes on "
            f"with `spotctl resume {job.name}` next month, or with --override-budget now"
        )
        key = f"budget_stop:{job.id}"
        event = Event("budget_stop", text, severity=Severity.ERROR, alert=True, key=key)
        store.add_event(job.id, event, now_us)
