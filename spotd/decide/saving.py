"""Slow training asks for a checkpoint: what is paid for is kept before the machine gets worse. If
it stays slow, it moves to another machine, once in a while.

Slow is below the job's own rate, or below that of the attempt before on this type of machine, or
held up by one of its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotd.decide.draft import Draft, place
from spotd.decide.health import WARM_UP_US, slow
from spotd.decide.needs import may_write
from spotd.decide.placement import rank
from spotd.model import LeaveReason, Node, S, Severity
from spotd.states import NodeState
from spotd.verdicts import STRAGGLER

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
    why = why_slow(d, running)
    if not speaks or not why:
        return
    if moved_lately(d, d.now_us) or not elsewhere(d):
        return
    text = f"{why} for {2 * round_us / S:.0f} s"
    for node in running:
        move(d, node, text)
    told = f"{place(running[0])} is {text}: it trains on until its replacement is ready"
    d.event("moved", told, running[0], severity=Severity.WARNING, alert=True)


def why_slow(d: Draft, running: Sequence[Node]) -> str:
    """In which way training is slow now; empty when it is not, or not known to be."""
    spec, samples = d.job.spec.health, d.view.throughput
    if slow(samples, spec, d.now_us):
        return f"below {spec.ratio:.0%} of the job's own throughput"
    round_us = int(spec.checks * spec.check_every_s * S)
    typical = d.view.typical_tokens_per_s
    warm_us = max(node.first_step_at_us for node in running) + WARM_UP_US + round_us
    if typical and d.now_us < warm_us:
        d.wake(warm_us)
    elif typical and slow(samples, spec, d.now_us, typical):
        d.wake(d.now_us + round_us)  # nobody else looks at it by this measure
        return f"below {spec.ratio:.0%} of what it did on this type of machine before"
    if moved_lately(d, d.now_us):
        return ""  # a rank that is slower on another machine too is so by its own work
    ours = {node.id for node in running}
    held_up = any(
        verdict.kind == STRAGGLER and verdict.at_us > d.now_us - round_us
        for verdict in d.view.verdicts
        if verdict.node_id in ours
    )
    return "held up by one of its ranks" if held_up else ""


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
    d.drain(node, LeaveReason.OUTBID, text)


def save_when_slow(d: Draft) -> None:
    """At most once per full round of checks, so that one slow hour is not a save a minute."""
    spec = d.job.spec.health
    running = [node for node in d.nodes if node.state is NodeState.RUNNING]
    if d.ended or not running or d.job.stop_text:
        return
    round_us = int(spec.checks * spec.check_every_s * S)
    if d.now_us - d.job.save_wanted_at_us < round_us:
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
