"""The doctor's scorecard: where money can still be saved or lost.

The order is that in which guides say it pays: checkpoints, spot, scaling, budgets, right-sizing. It
judges the jobs that exist, and never makes the doctor fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotd.api.request.context import ApiContext
from spotd.api.views.diagnosis import recent_use
from spotd.api.views.job_bill import bill
from spotd.domain.job import Desired, Job
from spotd.domain.market import Market
from spotd.domain.phase import keeps
from spotd.domain.states import NodeState
from spotd.domain.units import DAY_US, S
from spotd.planner.core.gangs import shrinks
from spotd.planner.core.shard_stores import longest_pause_s
from spotd.store.interface import Store

LATELY_US = 30 * DAY_US
CADENCES = 2.0  # checkpoint intervals without a checkpoint before it counts as late
BUSY = 0.7  # share of a GPU's time from which on it is well used
PILLARS = ("checkpoints", "spot", "scaling", "budget", "right-sizing")


@dataclass(frozen=True)
class Score:
    """One line of the scorecard; `good` is None when there is nothing to judge."""

    pillar: str
    good: bool | None
    text: str
    try_: str = ""


def scorecard(context: ApiContext, now_us: int) -> list[Score]:
    """Return the scores in the order of PILLARS. Raises StoreError."""
    store = context.store
    jobs = [job for job in store.jobs.rows(finished=False) if job.desired is Desired.RUN]
    judgements = (
        _checkpoints(store, jobs, context.market(now_us), now_us),
        _spot(store, now_us),
        _scaling(jobs),
        _budget(context, jobs),
        _sizes(store, jobs, now_us),
    )
    return [Score(name, *judgement) for name, judgement in zip(PILLARS, judgements, strict=True)]


Judgement = tuple[bool | None, str, str]


def _checkpoints(store: Store, jobs: Sequence[Job], market: Market, now_us: int) -> Judgement:
    late, training = [], 0
    for job in jobs:
        nodes = [n for n in store.nodes.of_job(job.id) if n.chosen and n.state is NodeState.RUNNING]
        started_us = min(
            (n.training.first_step_at_us for n in nodes if n.training.first_step_at_us), default=0
        )
        if not started_us:
            continue
        training += 1
        saved_us = max(started_us, job.head.seen_at_us if job.head else 0)
        pause_us = CADENCES * longest_pause_s(nodes[0].offer, job.spec, market) * S
        if not keeps(job.spec.checkpoint) or now_us - saved_us > pause_us:
            late.append(job.name)
    if not training:
        return None, "no job trains", ""
    message = f"{training - len(late)} of {training} jobs that train have a recent one"
    return not late, message, f"spotctl why {late[0]}" if late else ""


def _spot(store: Store, now_us: int) -> Judgement:
    rows = [r for r in store.ledger.segments() if not r.end_us or r.end_us > now_us - LATELY_US]
    total = bill(rows, now_us)
    if total.discount is None:
        return None, "no machine with an on-demand price in 30 days", ""
    message = f"{total.discount * 100:.1f} % below on-demand prices, in the last 30 days"
    return total.discount > 0, message, "" if total.discount > 0 else "spotctl plan job.yaml"


def _scaling(jobs: Sequence[Job]) -> Judgement:
    gangs = [job for job in jobs if job.spec.resources.num_nodes > 1]
    fixed = [job for job in gangs if not shrinks(job.spec)]
    if not gangs:
        return None, "no job of several machines", ""
    message = f"{len(gangs) - len(fixed)} of {len(gangs)} gangs continue with fewer machines"
    return not fixed, message, "spotd.on_node_loss: shrink, or wait-then-shrink" if fixed else ""


def _budget(context: ApiContext, jobs: Sequence[Job]) -> Judgement:
    budgets = list(context.settings.budgets())
    if any(not budget.user and not budget.project for budget in budgets):
        return True, f"{len(budgets)} monthly budgets, one of them for all jobs", ""
    unlimited = [job for job in jobs if not job.spec.limits.max_cost_microusd]
    message = f"{len(budgets)} monthly budgets, none for all jobs"
    if jobs:
        message += f"; {len(jobs) - len(unlimited)} of {len(jobs)} jobs have a max_cost_usd"
    return bool(jobs) and not unlimited, message, "[budgets.NAME] usd_per_month in config.toml"


def _sizes(store: Store, jobs: Sequence[Job], now_us: int) -> Judgement:
    used = [(job.name, recent_use(store, job, now_us)) for job in jobs]
    measured = [(name, use["gpu"]) for name, use in used if use and use["gpu"] is not None]
    idle = [name for name, share in measured if share < BUSY]
    if not measured:
        return None, "no GPU was measured recently", ""
    busy = len(measured) - len(idle)
    message = f"{busy} of {len(measured)} jobs use {BUSY * 100:.0f} % of their GPUs or more"
    return not idle, message, f"spotctl rightsize {idle[0]}" if idle else ""
