"""Request a checkpoint when training is slow, and move a job that stays slow, once in a while.

The checkpoint secures the paid work before the machine gets worse. Slow means below the job's own
rate, below that of the earlier attempt on this machine type, or held up by one rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotd.domain.events import Severity
from spotd.domain.health import STRAGGLER
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.core.next_effect import may_write
from spotd.planner.core.plan_builder import PlanBuilder, place
from spotd.planner.core.slow_detection import WARM_UP_US, slow
from spotd.planner.placement.rank import rank

# One that is slow wherever it is does not go round for ever.
MOVE_EVERY_S = 7200.0


def move_when_slow(d: PlanBuilder) -> None:
    """Drain the gang after a second slow round; its work is saved, and it trains until replaced."""
    spec, told_us = d.job.spec.monitoring.health, d.job.progress.save_wanted_at_us
    running = [node for node in d.nodes if node.state is NodeState.RUNNING]
    round_us = int(spec.checks * spec.check_every_s * S)
    if d.ended or not running or not all(may_write(node) for node in running):
        return
    if not round_us <= d.now_us - told_us < 2 * round_us or not _saved_since(d, told_us):
        return
    # One that is silent evaluates, or hangs, which its agent sees: neither is a slow machine.
    speaks = any(t.at_us > d.now_us - spec.check_every_s * S for t in d.view.throughput[-1:])
    why = why_slow(d, running)
    if not speaks or not why:
        return
    if moved_lately(d, d.now_us) or not elsewhere(d):
        return
    text = f"{why} for {2 * round_us / S:.0f} s"
    for node in running:
        move(d, node, text)
    message = f"{place(running[0])} is {text}: it keeps training until its replacement is ready"
    d.event("moved", message, running[0], severity=Severity.WARNING, alert=True)


def why_slow(d: PlanBuilder, running: Sequence[Node]) -> str:
    """Return why training is slow now, or "" if it is not known to be."""
    spec, samples = d.job.spec.monitoring.health, d.view.throughput
    if slow(samples, spec, d.now_us):
        return f"below {spec.ratio:.0%} of the job's own throughput"
    round_us = int(spec.checks * spec.check_every_s * S)
    typical = d.view.typical_tokens_per_s
    warm_us = max(node.training.first_step_at_us for node in running) + WARM_UP_US + round_us
    if typical and d.now_us < warm_us:
        d.wake_at(warm_us)
    elif typical and slow(samples, spec, d.now_us, typical):
        d.wake_at(d.now_us + round_us)  # nobody else looks at it by this measure
        return f"below {spec.ratio:.0%} of its earlier rate on this type of machine"
    if moved_lately(d, d.now_us):
        return ""  # a rank that is slower on another machine too is so by its own work
    ours = {node.id for node in running}
    held_up = any(
        verdict.kind == STRAGGLER and verdict.at_us > d.now_us - round_us
        for verdict in d.view.verdicts
        if verdict.node_id in ours
    )
    return "held up by one of its ranks" if held_up else ""


def _saved_since(d: PlanBuilder, at_us: int) -> bool:
    head = d.job.head
    return head is not None and head.generation == d.job.generation and head.seen_at_us > at_us


def moved_lately(d: PlanBuilder, at_us: int) -> bool:
    """Return whether there was a move shortly before `at_us`."""
    since_us = at_us - int(MOVE_EVERY_S * S)
    moves = [a for a in d.view.attempts if a.cause == LeaveReason.OUTBID.value]
    return any(attempt.opened_at_us > since_us for attempt in moves)


def elsewhere(d: PlanBuilder) -> bool:
    """Return whether another place is available; otherwise this one is the best."""
    ours = {node.offer.key for node in d.nodes if node.active}
    rows = rank(d.job.spec, d.market, d.now_us, ours, job_id=d.job.id)
    return not d.market.launch.blocked and any(not row.excluded for row in rows)


def move(d: PlanBuilder, node: Node, text: str) -> None:
    """Drain the node; it trains until its replacement is ready."""
    d.drain(node, LeaveReason.OUTBID, text)


def save_when_slow(d: PlanBuilder) -> None:
    """Request a save at most once per full round of checks.

    Otherwise a slow hour would cause a save every minute.
    """
    spec = d.job.spec.monitoring.health
    running = [node for node in d.nodes if node.state is NodeState.RUNNING]
    if d.ended or not running or d.job.end.stop_text:
        return
    round_us = int(spec.checks * spec.check_every_s * S)
    if d.now_us - d.job.progress.save_wanted_at_us < round_us:
        return
    why = why_slow(d, running)
    if why:
        d.set_job(save_wanted_at_us=d.now_us)
        d.event(
            "slow",
            f"{why} for {round_us / S:.0f} s; saving",
            running[0],
            severity=Severity.WARNING,
            alert=True,
        )
