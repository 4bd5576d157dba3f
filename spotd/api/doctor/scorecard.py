"""Where there is money to be saved or lost yet, in the order in which guides have it pay: first
checkpoints, then spot, scaling, budgets, right-sizing. A judgement of the jobs that there are, and
no reason for the doctor to fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotd.api.request.request import ApiContext
from spotd.api.views.diagnosis import use_lately
from spotd.api.views.job_bill import bill
from spotd.domain.job import Desired, Job
from spotd.domain.market import Market
from spotd.domain.phase import keeps
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.money.budget import DAY_US
from spotd.planner.core.gangs import shrinks
from spotd.planner.core.shard_stores import longest_pause_s
from spotd.store.interface import Store

LATELY_US = 30 * DAY_US
CADENCES = 2.0  # without a checkpoint, before one is late
BUSY = 0.7  # of a GPU's time, from which on it is well used
PILLARS = ("checkpoints", "spot", "scaling", "budget", "right-sizing")


@dataclass(frozen=True)
class Score:
    """One line. `good` None: there is nothing to judge."""

    pillar: str
    good: bool | None
    text: str
    try_: str = ""


def scorecard(backing: ApiContext, now_us: int) -> list[Score]:
    """In the order of PILLARS. Raises StoreError."""
    store = backing.store
    jobs = [job for job in store.jobs(finished=False) if job.desired is Desired.RUN]
    found = (
        _checkpoints(store, jobs, backing.market(now_us), now_us),
        _spot(store, now_us),
        _scaling(jobs),
        _budget(backing, jobs),
        _sizes(store, jobs, now_us),
    )
    return [Score(name, *one) for name, one in zip(PILLARS, found, strict=True)]


Told = tuple[bool | None, str, str]


def _checkpoints(store: Store, jobs: Sequence[Job], market: Market, now_us: int) -> Told:
    late, trains = [], 0
    for job in jobs:
        nodes = [n for n in store.job_nodes(job.id) if n.chosen and n.state is NodeState.RUNNING]
        begun_us = min((n.first_step_at_us for n in nodes if n.first_step_at_us), default=0)
        if not begun_us:
            continue
        trains += 1
        safe_us = max(begun_us, job.head.seen_at_us if job.head else 0)
        pause_us = CADENCES * longest_pause_s(nodes[0].offer, job.spec, market) * S
        if not keeps(job.spec.checkpoint) or now_us - safe_us > pause_us:
            late.append(job.name)
    if not trains:
        return None, "no job trains", ""
    text = f"{trains - len(late)} of {trains} jobs that train have one of late"
    return not late, text, f"spotctl why {late[0]}" if late else ""


def _spot(store: Store, now_us: int) -> Told:
    rows = [r for r in store.segments() if not r.end_us or r.end_us > now_us - LATELY_US]
    found = bill(rows, now_us)
    if found.discount is None:
        return None, "no machine with a price on demand in 30 days", ""
    text = f"{found.discount * 100:.1f} % below the price on demand, of machines of 30 days"
    return found.discount > 0, text, "" if found.discount > 0 else "spotctl plan job.yaml"


def _scaling(jobs: Sequence[Job]) -> Told:
    gangs = [job for job in jobs if job.spec.num_nodes > 1]
    fixed = [job for job in gangs if not shrinks(job.spec)]
    if not gangs:
        return None, "no job of several machines", ""
    text = f"{len(gangs) - len(fixed)} of {len(gangs)} gangs go on with fewer machines"
    return not fixed, text, "spotd.on_node_loss: shrink, or wait-then-shrink" if fixed else ""


def _budget(backing: ApiContext, jobs: Sequence[Job]) -> Told:
    budgets = list(backing.budgets())
    if any(not one.user and not one.project for one in budgets):
        return True, f"{len(budgets)} by the month, one of them of all jobs", ""
    free = [job for job in jobs if not job.spec.max_cost_microusd]
    text = f"{len(budgets)} by the month, none of all jobs"
    if jobs:
        text += f"; {len(jobs) - len(free)} of {len(jobs)} jobs have a max_cost_usd"
    return bool(jobs) and not free, text, "[budgets.NAME] usd_per_month in config.toml"


def _sizes(store: Store, jobs: Sequence[Job], now_us: int) -> Told:
    used = [(job.name, use_lately(store, job, now_us)) for job in jobs]
    measured = [(name, use["gpu"]) for name, use in used if use and use["gpu"] is not None]
    idle = [name for name, share in measured if share < BUSY]
    if not measured:
        return None, "no GPU was measured lately", ""
    busy = len(measured) - len(idle)
    text = f"{busy} of {len(measured)} jobs use {BUSY * 100:.0f} % of their GPUs or more"
    return not idle, text, f"spotctl rightsize {idle[0]}" if idle else ""
