"""Machines that are taken away, fall silent, or never come up."""

from __future__ import annotations

from spotd.decide.draft import LEAVING, Draft, place
from spotd.decide.needs import (
    alive_at_us,
    mate_released,
    release_deadline_us,
    silent_since_us,
    suspect,
)
from spotd.model import LeaveReason, Node, NoticeSeen, S, Severity
from spotd.states import NodeState


def taking_away(node: Node) -> NoticeSeen | None:
    """The notice in force that ends this machine, the earliest; never a rebalance."""
    notices = [notice for notice in node.notices if notice.takes_away]
    return min(notices, key=lambda n: n.deadline_us or 0, default=None)


def drain_noticed(d: Draft) -> None:
    """A notice drains a training machine (it trains on until its replacement is ready), and ends
    one that does not train yet."""
    for node in d.nodes:
        notice = taking_away(node)
        if notice is None and node.state is NodeState.DRAINING and node.told_release_at_us:
            _end_release(d, node)
        if notice is None or node.state in LEAVING:
            continue
        if node.state is NodeState.RUNNING:
            _drain(d, node, notice)
        elif node.state in (NodeState.LAUNCHING, NodeState.BOOTING):
            d.leave(node, LeaveReason.PREEMPTED, "preempted before it trained")
        elif node.state is NodeState.DRAINING and not d.job.stop_text:
            deadline_us = release_deadline_us(node, d.view, d.now_us)
            end_us = deadline_us + int(d.market.timing.drain_margin_s * S)
            if d.now_us >= end_us and node.leave_reason is LeaveReason.PREEMPTED:
                d.leave(node, LeaveReason.PREEMPTED, "its notice has run out")
            elif node.leave_reason is LeaveReason.PREEMPTED:
                d.wake(end_us)


def _drain(d: Draft, node: Node, notice: NoticeSeen) -> None:
    left = (
        "" if notice.deadline_us is None else f", {(notice.deadline_us - d.now_us) / S:.0f} s left"
    )
    d.set_node(
        node,
        state=NodeState.DRAINING,
        leave_reason=LeaveReason.PREEMPTED,
        leave_text=f"{notice.kind.value} notice",
        left_at_us=d.now_us,
        drained_at_us=d.now_us,
    )
    d.say(f"{place(node)} is being taken away{left}")
    d.event(
        "notice",
        f"{notice.kind.value} notice for {place(node)} at step {node.last_step}{left}; "
        "it trains on until its replacement is ready",
        node,
        severity=Severity.WARNING,
        alert=True,
        deadline_us=notice.deadline_us,
    )


def withdraw(d: Draft) -> None:
    """Back to running when the notice was withdrawn, nothing was released, and no replacement was
    chosen; otherwise the replacement wins."""
    for node in d.nodes:
        preempted = node.leave_reason is LeaveReason.PREEMPTED
        if node.state is not NodeState.DRAINING or not preempted:
            continue
        # A rank drains for the notice of another as well: no gang goes on without all of it.
        if any(taking_away(mate) or _giving_up(mate) for mate in gang_of(d, node)):
            continue
        newer = [n for n in d.nodes if n.generation > node.generation and n.state not in LEAVING]
        if any(n.chosen for n in newer) or d.job.stop_text:
            continue
        d.set_node(
            node,
            state=NodeState.RUNNING,
            leave_reason=None,
            leave_text="",
            left_at_us=0,
            drained_at_us=0,
        )
        d.event(
            "withdrawn",
            f"the notice for {place(node)} was withdrawn; it trains on",
            node,
            alert=True,
        )
        for candidate in newer:
            d.leave(candidate, LeaveReason.HEDGE_LOST, "the notice was withdrawn")


def _giving_up(node: Node) -> bool:
    """It ended or is about to, and a notice taken back comes too late."""
    gone = node.state in LEAVING or node.exit_code is not None
    return gone or bool(node.released_at_us or node.told_release_at_us)


def gang_of(d: Draft, node: Node) -> list[Node]:
    """The node and its mates."""
    key = (node.generation, node.candidate)
    return [mate for mate in d.nodes if (mate.generation, mate.candidate) == key]


def give_up_lost(d: Draft) -> None:
    """Silent for too long though the cloud lists it; HEAD that moved meanwhile means alive."""
    for node in d.nodes:
        if node.state in LEAVING or not suspect(node, d.market, d.now_us):
            continue
        silent_us = silent_since_us(node)
        d.say(f"{place(node)} is silent for {(d.now_us - silent_us) / S:.0f} s")
        end_us = alive_at_us(node, d.view) + int(d.market.timing.lost_after_s * S)
        if d.now_us >= end_us:
            d.event(
                "lost",
                f"{place(node)} has been silent for {d.market.timing.lost_after_s:.0f} s",
                node,
                severity=Severity.WARNING,
                alert=node.state is NodeState.RUNNING,
            )
            d.leave(node, LeaveReason.LOST, "silent for too long", keep=True)
        else:
            d.wake(min(end_us, d.now_us + int(d.market.timing.resurvey_s * S)))


def give_up_boot(d: Draft) -> None:
    """A machine that does not come up in time is given back, and its offer cooled."""
    spec = d.job.spec
    for node in d.nodes:
        if node.state not in (NodeState.LAUNCHING, NodeState.BOOTING) or node.kept_until_us:
            continue
        if not node.hello_at_us:
            end_us = node.requested_at_us + int(spec.boot_timeout_s * S)
            text = f"not up within {spec.boot_timeout_s:.0f} s"
        elif node.started_at_us and not node.ready_at_us:
            end_us = node.started_at_us + int(spec.setup_timeout_s * S)
            text = f"setup not done within {spec.setup_timeout_s:.0f} s"
        else:
            continue
        if d.now_us < end_us:
            d.wake(end_us)
            continue
        error = f" ({node.effect_error})" if node.effect_error else ""
        d.leave(node, LeaveReason.BOOT_TIMEOUT, text + error)


def _may_save(d: Draft, node: Node) -> bool:
    """A mate has released and left; this one is told to do the same, and has its grace for it."""
    ended = node.exit_code is not None or node.released_at_us
    if node.state is not NodeState.DRAINING or ended or not mate_released(node, d.view):
        return False
    return d.now_us < _release_end_us(d, node)


def _release_end_us(d: Draft, node: Node) -> int:
    margin_s = d.job.spec.stop_grace_s + d.market.timing.drain_margin_s
    return (node.told_release_at_us or d.now_us) + int(margin_s * S)


def _end_release(d: Draft, node: Node) -> None:
    """Told to release with no notice of its own, for its mate had one: it has its grace."""
    end_us = _release_end_us(d, node)
    if d.now_us >= end_us:
        d.leave(node, LeaveReason.PREEMPTED, "it did not release within its grace", keep=True)
    else:
        d.wake(end_us)


def keep_gang(d: Draft) -> None:
    """A gang comes and leaves together: no rank is paid for while another is missing."""
    if d.job.spec.num_nodes == 1:
        return
    gangs = {(node.generation, node.candidate) for node in d.nodes}
    for generation, candidate in sorted(gangs):
        gang = [n for n in d.nodes if (n.generation, n.candidate) == (generation, candidate)]
        first = next((n for n in gang if n.state in LEAVING), None)
        draining = next((n for n in gang if n.state is NodeState.DRAINING), None)
        for node in gang:
            if first is not None and not _may_save(d, node):
                why = first.leave_reason or LeaveReason.LOST
                d.leave(node, why, f"rank {first.rank} left", keep=True)
            elif draining is not None and node.state is NodeState.RUNNING:
                d.set_node(
                    node,
                    state=NodeState.DRAINING,
                    leave_reason=draining.leave_reason,
                    leave_text=f"rank {draining.rank} is being taken away",
                    left_at_us=d.now_us,
                    drained_at_us=d.now_us,
                )
