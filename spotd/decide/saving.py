"""Slow training asks for a checkpoint: what is paid for is kept before the machine gets worse. If
it stays slow, it moves to another machine, once in a while."""

from __future__ import annotations

from spotd.decide.draft import Draft, place
from spotd.decide.health import slow
from spotd.decide.needs import may_write
from spotd.decide.placement import rank
from spotd.model import LeaveReason, Node, S, Severity
from spotd.states import NodeState

# One that is slow wherever it is does not go round for ever.
MOVE_EVERY_S = 7200.0


def move_when_slow(d: Draft) -> None:
    """A second round as slow as the one that was told, and what it had done is saved by now: its
    gang drains, and trains on until there is a better one."""
    spec, told_us = d.job.spec.health, d.job.save_wanted_at_us
    running = [node for node in d.nodes if node.state is NodeState.RUNNING]
    round_us = int(spec.checks * spec.check_every_s * S)
    if d.ended or not running or not all(may_write(node) for node in running):
        return
    if not round_us <= d.now_us - told_us < 2 * round_us or not _saved_since(d, told_us):
        return
    # One that is silent evaluates, or hangs, which its agent sees: neither is a slow machine.
    speaks = any(t.at_us > d.now_us - spec.check_every_s * S for t in d.view.throughput[-1:])
    if not speaks or not slow(d.view.throughput, spec, d.now_us):
        return
    if moved_lately(d, d.now_us) or not elsewhere(d):
        return
    text = f"below {spec.ratio:.0%} of the job's own throughput for {2 * round_us / S:.0f} s"
    for node in running:
        move(d, node, text)
    told = f"{place(running[0])} is {text}: it trains on until its replacement is ready"
    d.event("moved", told, running[0], severity=Severity.WARNING, alert=True)


def _saved_since(d: Draft, at_us: int) -> bool:
    head = d.job.head
    return head is not None and head.generation == d.job.generation and head.seen_at_us > at_us


def moved_lately(d: Draft, at_us: int) -> bool:
    """There had been a move not long before `at_us`."""
    since_us = at_us - int(MOVE_EVERY_S * S)
    moves = [a for a in d.view.attempts if a.cause == LeaveReason.OUTBID.value]
    return any(attempt.opened_at_us > since_us for attempt in moves)


def elsewhere(d: Draft) -> bool:
    """There is another place to be had; else this one is the best there is."""
    ours = {node.offer.key for node in d.nodes if node.active}
    rows = rank(d.job.spec, d.market, d.now_us, ours, job_id=d.job.id)
    return not d.market.blocked and any(not row.excluded for row in rows)


def move(d: Draft, node: Node, text: str) -> None:
    """It drains, and trains on until its replacement is ready."""
    d.set_node(
        node,
        state=NodeState.DRAINING,
        leave_reason=LeaveReason.OUTBID,
        leave_text=text,
        left_at_us=d.now_us,
        drained_at_us=d.now_us,
    )


def save_when_slow(d: Draft) -> None:
    """At most once per full round of checks, so that one slow hour is not a save a minute."""
    spec = d.job.spec.health
    running = [node for node in d.nodes if node.state is NodeState.RUNNING]
    if d.ended or not running or d.job.stop_text:
        return
    round_us = int(spec.checks * spec.check_every_s * S)
    if d.now_us - d.job.save_wanted_at_us < round_us:
        return
    if slow(d.view.throughput, spec, d.now_us):
        d.set_job(save_wanted_at_us=d.now_us)
        d.event(
            "slow",
            f"below {spec.ratio:.0%} of the job's own throughput for {round_us / S:.0f} s; saving",
            running[0],
            severity=Severity.WARNING,
            alert=True,
        )
