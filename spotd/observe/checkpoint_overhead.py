"""Alert on a job whose saves take more than a tenth of its time, with advice."""

from __future__ import annotations

from spotd.domain.events import Event, Severity
from spotd.domain.health import USAGE, use_of
from spotd.domain.job import Desired, Job
from spotd.domain.states import NodeState
from spotd.domain.units import DAY_US, S
from spotd.store.interface import Store

MOST = 0.10  # of wall clock; guides to training on spot machines have 5 to 10 %
WITHIN_S = 3600.0
LEAST_S = 900.0  # of measured time: three windows of a machine (trainer/agent/watch/usage.py)


def judge_saves(store: Store, now_us: int) -> None:
    """Alert once a day, by the measurements of running machines in the last hour."""
    alerted = store.events.keys("saves_cost", now_us - DAY_US)
    for job in store.jobs.rows(finished=False):
        key = f"saves_cost:{job.id}"
        if job.desired is not Desired.RUN or key in alerted:
            continue
        share = share_of(store, job, now_us)
        if share is not None and share > MOST:
            event = Event(
                "saves_cost",
                f"{job.name} pauses for its saves {share:.1%} of the time: {_advice(job)}",
                severity=Severity.WARNING,
                alert=True,
                key=key,
                data={"share": round(share, 4)},
            )
            store.events.add(job.id, event, now_us)


def share_of(store: Store, job: Job, now_us: int) -> float | None:
    """Return the share of machine time that saves took from training; None if unknown."""
    running = {node.id for node in store.nodes.of_job(job.id) if node.state is NodeState.RUNNING}
    windows = [
        row.event.data
        for row in store.events.of_kinds(job.id, (USAGE,), now_us - int(WITHIN_S * S))
        if row.event.node_id in running and isinstance(row.event.data.get("save_s"), int | float)
    ]
    used = use_of(windows)
    return used.save if used is not None and used.seconds >= LEAST_S else None


def _advice(job: Job) -> str:
    if job.spec.checkpoint.auto:
        return (
            "its interval is `auto` and already as long as pays off; a smaller state, or a copy "
            "that is made while training continues, makes a save shorter"
        )
    if job.spec.checkpoint.engine == "none":
        return "save less often, or use spotd_hook (engine: spotd), which saves during training"
    return "save less often; `every: auto` makes the interval longer where a save takes long"
