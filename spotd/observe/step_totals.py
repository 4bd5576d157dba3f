"""Warn once for each job whose file and program name different totals of steps."""

from __future__ import annotations

from collections import defaultdict

from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity
from spotd.domain.node import Node
from spotd.domain.work_total import differing_totals, least_total, named_total
from spotd.store.interface import Store

DIFFERS = "total_differs"  # the kind of the event


class StepTotals:
    """The periodic task. State is only in the recorded events."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def check(self, store: Store) -> None:
        """Compare once, for the jobs that have machines."""
        named: defaultdict[str, list[Node]] = defaultdict(list)
        for node in store.nodes.active():
            if node.training.total_steps:
                named[node.job_id].append(node)
        for job_id, nodes in named.items():
            job = store.jobs.find(job_id)
            text = differing_totals(job, named_total(nodes), least_total(nodes)) if job else ""
            if job is None or not text or store.events.last(job_id, DIFFERS):
                continue
            event = Event(
                DIFFERS,
                f"{job.name}: {text}",
                severity=Severity.WARNING,
                alert=True,
                key=f"{DIFFERS}:{job_id}",
            )
            store.events.add(job_id, event, self._clock.now_us())
