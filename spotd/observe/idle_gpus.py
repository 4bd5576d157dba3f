"""Alert on jobs with idle or badly used GPUs, with dollars and the likely cause; pause by policy.

It also checks for saves that stop training for long.
"""

from __future__ import annotations

from collections.abc import Callable

from providers.dollars import format_usd
from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity
from spotd.domain.health import IDLE_BELOW, USAGE, use_of
from spotd.domain.job import Desired, Job
from spotd.domain.states import NodeState
from spotd.domain.units import DAY_US, S
from spotd.money.idle import ALLOW, PAUSE, Idle, IdlePolicy, Window, idle_gpus
from spotd.observe.checkpoint_overhead import judge_saves
from spotd.store.interface import Store

USE_S = 900.0  # what is judged of them


class IdleGpuCheck:
    """`policy()` is that of the configuration in force."""

    def __init__(self, policy: Callable[[], IdlePolicy], clock: Clock) -> None:
        self._policy = policy
        self._clock = clock

    def look(self, store: Store) -> None:
        """Check once. State is only in the recorded events."""
        judge_idle(store, self._policy(), self._clock.now_us())
        judge_use(store, self._policy(), self._clock.now_us())
        judge_saves(store, self._clock.now_us())


def judge_idle(store: Store, policy: IdlePolicy, now_us: int) -> None:
    """Alert once a day, and pause the job if the policy says so and this is not a dry run.

    It is paused as with `spotctl pause`, so training saves first. A program that makes no steps
    reports nothing: domain/health.py covers that.
    """
    if policy.does == ALLOW:
        return
    alerted = store.events.keys("idle_gpus", now_us - DAY_US)
    for job in store.jobs.rows(finished=False):
        key = f"idle_gpus:{job.id}"
        if job.desired is not Desired.RUN or key in alerted:
            continue
        idle = idle_gpus(_windows(store, job, now_us - int(policy.after_s * S)), policy)
        if idle is None:
            continue
        text = _text(job, idle, policy)
        paused = policy.does == PAUSE and not policy.dry_run
        if paused:
            text += f"it saves and is paused; continue it with `spotctl resume {job.name}`"
        elif policy.does == PAUSE:
            text += "with dry_run = false in [policies] it would save and be paused"
        else:
            text += f"`spotctl why {job.name}` shows what it waits for"
        event = Event("idle_gpus", text, severity=Severity.WARNING, alert=True, key=key)
        if paused:
            store.jobs.pause(job.id, event, now_us)
        else:
            store.events.add(job.id, event, now_us)


def judge_use(store: Store, policy: IdlePolicy, now_us: int) -> None:
    """Alert once a day on use below 70 % in the last 15 min, with the likely cause.

    Not within a day of an alert on idle GPUs.
    """
    if policy.does == ALLOW:
        return
    since_us = now_us - int(USE_S * S)
    alerted = store.events.keys("gpus_low", now_us - DAY_US)
    idle = store.events.keys("idle_gpus", now_us - DAY_US)
    for job in store.jobs.rows(finished=False):
        key = f"gpus_low:{job.id}"
        if job.desired is not Desired.RUN or key in alerted or f"idle_gpus:{job.id}" in idle:
            continue
        windows = _windows(store, job, since_us)
        low_use = idle_gpus(windows, IdlePolicy(below=IDLE_BELOW, after_s=USE_S))
        if low_use is None:
            continue
        machines = {window.node_id for window in windows}
        rows = store.events.of_kinds(job.id, (USAGE,), since_us)
        use = use_of([row.event.data for row in rows if row.event.node_id in machines])
        text = (
            f"the GPUs of {job.name} were busy {low_use.gpu:.0%} of the last {USE_S / 60:.0f} min, "
            f"below {IDLE_BELOW:.0%}: {format_usd(low_use.usd_per_h)} per hour for GPUs that do "
            f"nothing; likely cause: {(use and use.cause) or 'not known'}"
        )
        event = Event("gpus_low", text, severity=Severity.WARNING, alert=True, key=key)
        store.events.add(job.id, event, now_us)


def _windows(store: Store, job: Job, since_us: int) -> list[Window]:
    """Return the windows of the machines that train now."""
    rates = {
        node.id: node.offer.price_microusd_per_h / 1e6
        for node in store.nodes.of_job(job.id)
        if node.state is NodeState.RUNNING
    }
    if not rates:
        return []
    windows = []
    for row in store.events.of_kinds(job.id, (USAGE,), since_us):
        usage, rate = row.event.data, rates.get(row.event.node_id)
        seconds, gpu = usage.get("window_s"), usage.get("gpu")
        if rate is None or not isinstance(seconds, int | float) or not isinstance(gpu, int | float):
            continue
        windows.append(Window(row.event.node_id, float(seconds), min(float(gpu), 1.0), rate))
    return windows


def _text(job: Job, idle: Idle, policy: IdlePolicy) -> str:
    return (
        f"the GPUs of {job.name} were busy {idle.gpu:.0%} of the last {policy.after_s / 60:.0f} "
        f"min: {format_usd(idle.usd)} for GPUs that did nothing, and {format_usd(idle.usd_per_h)} "
        "more each hour; "
    )
