"""Replace machines that are preempted, fall silent, or never start."""

from __future__ import annotations

from spotd.domain.events import Severity
from spotd.domain.node import EffectKind, Node, NoticeRecord
from spotd.domain.states import TRAINS_ON, LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.core.gangs import mate_released, remaining, taken_on_us
from spotd.planner.core.image_build import setup_done
from spotd.planner.core.next_effect import (
    CALL_DEADLINE_S,
    alive_at_us,
    cut_off,
    hearing_since_us,
    lost_at_us,
    suspect,
    unanswered,
)
from spotd.planner.core.plan_builder import LEAVING, PlanBuilder, place
from spotd.planner.core.reservation_end import BOOKED
from spotd.wire import DRILL_SOURCE, OUTPUTS_LIMIT_S

LATE_TRIES = 12  # at one whose time to come up ran out while nobody was there, to start its agent
RELEASE_TRIES = 8  # about a minute of refusals
MOVE_S = 3 * CALL_DEADLINE_S[EffectKind.BOOT]  # for a machine that is up, and serves us already
START_S = 2 * CALL_DEADLINE_S[EffectKind.START]  # for a chosen machine to take its start


def taking_away(node: Node) -> NoticeRecord | None:
    """The notice in force that ends this machine, the earliest; never a rebalance."""
    notices = [notice for notice in node.notices if notice.takes_machine]
    return min(notices, key=lambda n: n.deadline_us or 0, default=None)


def drain_noticed(d: PlanBuilder) -> None:
    """Drain training machines that have a notice, and terminate those that do not train yet.

    A draining machine keeps training until its replacement is ready.
    """
    for node in d.nodes:
        notice = taking_away(node)
        if notice is None or node.state in LEAVING:
            continue
        if node.state is NodeState.RUNNING:
            _drain(d, node, notice)
        elif node.state in (NodeState.LAUNCHING, NodeState.BOOTING):
            d.terminate(node, LeaveReason.PREEMPTED, "preempted before it trained")
    for node in d.nodes:  # what drains since just now may be late already
        if node.state is NodeState.DRAINING:
            _end_drain(d, node)


def _end_drain(d: PlanBuilder, node: Node) -> None:
    """Terminate a drain that takes too long, whatever the job's desired state is now."""
    if node.departure.kept_until_us > d.now_us:
        return
    end_us, text = _drain_end(d, node)
    if not end_us:
        return
    if d.now_us >= end_us:
        if not any(other.id == node.id for other in remaining(d.view, d.now_us)):
            d.terminate(node, LeaveReason.CANCELLED, text, keep=True)
    else:
        d.wake_at(end_us)


def _drain_end(d: PlanBuilder, node: Node) -> tuple[int, str]:
    """Return when we terminate a draining node ourselves, and why.

    0 while it trains until its replacement is ready. A notice without a deadline leaves it the
    job's grace.
    """
    grace_us = int(d.job.spec.timeouts.stop_grace_s * S)
    margin_us = int(d.market.timing.drain_margin_s * S)
    saved_us = node.departure.drained_at_us + grace_us
    noticed = [n.deadline_us or saved_us for n in node.notices if n.takes_machine]
    if node.departure.leave_reason not in TRAINS_ON:
        text = f"{node.departure.leave_text}; it did not stop within its grace"
        if node.storage.outputs_since_us:
            text = f"{node.departure.leave_text}; its outputs were not stored in time"
            saved_us = max(saved_us, node.storage.outputs_since_us + int(OUTPUTS_LIMIT_S * S))
        return min([saved_us, *noticed]) + margin_us, text
    if noticed:
        return min(noticed) + margin_us, "its notice has expired"
    if node.agent.told_release_at_us:
        return release_end_us(d, node), "it did not release within its grace"
    return 0, ""


def _drain(d: PlanBuilder, node: Node, notice: NoticeRecord) -> None:
    left = (
        "" if notice.deadline_us is None else f", {(notice.deadline_us - d.now_us) / S:.0f} s left"
    )
    booked = notice.notice_id == BOOKED
    what = "its booked time ends" if booked else f"{notice.kind.value} notice"
    cause = f"the booked time of {place(node)} ends" if booked else f"{what} for {place(node)}"
    if notice.source == DRILL_SOURCE:
        cause = f"a drill: simulated {cause}"
    d.drain(node, LeaveReason.PREEMPTED, what)
    d.add_reason(f"{place(node)} is being preempted{left}")
    step = node.training.last_step
    d.event(
        "notice",
        f"{cause} at step {step}{left}; it keeps training until its replacement is ready",
        node,
        severity=Severity.WARNING,
        alert=True,
        deadline_us=notice.deadline_us,
    )


def withdraw(d: PlanBuilder) -> None:
    """Back to running when the notice was withdrawn, nothing was released, and no replacement was
    chosen; otherwise the replacement wins."""
    for node in d.nodes:
        preempted = node.departure.leave_reason is LeaveReason.PREEMPTED
        if node.state is not NodeState.DRAINING or not preempted:
            continue
        # A rank drains for the notice of another as well: no gang goes on without all of it.
        if any(taking_away(mate) or _giving_up(mate) for mate in gang_of(d, node)):
            continue
        newer = [n for n in d.nodes if n.generation > node.generation and n.state not in LEAVING]
        if any(n.chosen for n in newer) or d.job.end.stop_text or d.ended:
            continue
        d.train_on(node)
        d.event(
            "withdrawn",
            f"the notice for {place(node)} was withdrawn; it keeps training",
            node,
            alert=True,
        )
        for candidate in newer:
            d.terminate(candidate, LeaveReason.HEDGE_LOST, "the notice was withdrawn")


def _giving_up(node: Node) -> bool:
    """Return whether the node ended or is about to, so that a withdrawn notice comes too late."""
    gone = node.state in LEAVING or node.training.exit_code is not None
    return gone or bool(node.training.released_at_us or node.agent.told_release_at_us)


def gang_of(d: PlanBuilder, node: Node) -> list[Node]:
    """The node and its mates."""
    key = (node.generation, node.candidate)
    return [mate for mate in d.nodes if (mate.generation, mate.candidate) == key]


def give_up_lost(d: PlanBuilder) -> None:
    """Give up a node that was silent for too long although its cloud lists it.

    A HEAD that moved meanwhile shows that it is alive. While neither HEAD nor the cloud can be
    read, nothing is known and no node is given up.
    """
    for node in d.nodes:
        if node.state in LEAVING:
            continue
        if not suspect(node, d.market, d.now_us):
            _heard_again(d, node)
            continue
        if cut_off(node, d.market, d.now_us):
            d.add_reason(f"{place(node)} cannot be reached: the jump host does not respond")
            d.wake_at(d.now_us + int(d.market.timing.resurvey_s * S))
            continue
        silent_s = (d.now_us - alive_at_us(node, d.view, d.market)) / S
        end_us = lost_at_us(node, d.view, d.market)
        whom = unanswered(node, d.view, d.market)
        again_us = d.now_us + int(d.market.timing.resurvey_s * S)
        if d.now_us < end_us:
            d.add_reason(f"{place(node)} has been silent for {silent_s:.0f} s")
            d.wake_at(min(end_us, again_us))
        elif whom:
            _await_answer(d, node, whom)
            d.wake_at(again_us)
        else:
            d.event(
                "lost",
                f"{place(node)} has been silent for {silent_s:.0f} s",
                node,
                severity=Severity.WARNING,
                alert=node.state is NodeState.RUNNING,
            )
            d.terminate(node, LeaveReason.LOST, "silent for too long", keep=True)


def _await_answer(d: PlanBuilder, node: Node, whom: str) -> None:
    """Add an event once; the node's `leave_text` records that."""
    text = f"{place(node)} is silent, and {whom} does not answer: retained until that is known"
    d.add_reason(text)
    if not node.departure.leave_text:
        d.set_node(node, leave_text=f"silent, and {whom} does not answer")
        d.event("unheard", text, node, severity=Severity.WARNING, alert=True)


def _heard_again(d: PlanBuilder, node: Node) -> None:
    if node.departure.leave_text and node.departure.leave_reason is None:
        d.set_node(node, leave_text="")


def give_up_boot(d: PlanBuilder) -> None:
    """Give back a machine that does not start in time, and let its offer cool."""
    for node in d.nodes:
        if (
            node.state not in (NodeState.LAUNCHING, NodeState.BOOTING)
            or node.departure.kept_until_us
        ):
            continue
        if d.job.spec.program.bake and setup_done(node):
            continue  # see baking.py
        if node.agent.heard_at_us and suspect(node, d.market, d.now_us):
            continue  # what it has done since is not known: see give_up_lost
        end_us, text = _boot_end(d, node)
        if not end_us:
            continue
        if d.now_us < end_us:
            d.wake_at(end_us)
            continue
        error = f" ({node.call.effect_error})" if node.call.effect_error else ""
        if node.chosen and not node.startup.started_at_us:
            words = f"{place(node)} could not be started and is replaced: {text}{error}"
            cause = node.call.effect_error or text
            d.event("start_failed", words, node, severity=Severity.WARNING, alert=True, cause=cause)
        d.terminate(node, LeaveReason.BOOT_TIMEOUT, text + error)


def _boot_end(d: PlanBuilder, node: Node) -> tuple[int, str]:
    """Return when a starting machine's next step is overdue, and the message; 0 if nothing is.

    An agent may have done the step while no daemon listened, so it gets time to report it. So does
    a machine whose time ran out while no daemon could start its agent. In a restored database, a
    machine that trains may be recorded as starting.
    """
    timeouts = d.job.spec.timeouts
    if not node.startup.hello_at_us:
        boot_s = timeouts.boot_timeout_s
        limit_s = min(boot_s, MOVE_S) if node.moved_at_us else boot_s
        end_us = taken_on_us(node) + int(limit_s * S)
        text = f"not up within {limit_s:.0f} s"
    elif node.startup.started_at_us and not node.startup.ready_at_us:
        end_us = node.startup.started_at_us + int(timeouts.setup_timeout_s * S)
        text = f"setup did not finish within {timeouts.setup_timeout_s:.0f} s"
    elif node.chosen and not node.startup.started_at_us:
        # It is chosen as soon as every rank of its gang has sent a hello; and while this daemon
        # was away, nothing could start it.
        hello_us = max(mate.startup.hello_at_us for mate in gang_of(d, node))
        end_us = max(hello_us, hearing_since_us(node, d.market)) + int(START_S * S)
        text = f"could not be started within {START_S:.0f} s"
    else:
        return 0, ""
    since_us = hearing_since_us(node, d.market)
    # A few tries fail by themselves. They are on record: daemons that die do not begin anew for
    # ever. A jump host that was away does.
    few = node.call.effect_failed_at_us < end_us or node.call.effect_failures < LATE_TRIES
    untried = end_us < since_us and few
    if node.startup.booted_at_us or untried or _was_cut_off(d, node):
        end_us = max(end_us, since_us + int(d.market.timing.lost_after_s * S))
    return end_us, text


def _was_cut_off(d: PlanBuilder, node: Node) -> bool:
    """Return whether the path to it was broken since the request, not only while we were away."""
    reached_us = d.market.uptime.reached_since_us.get(node.offer.provider, 0)
    ours_us = d.market.uptime.listening_since_us + int(d.market.timing.suspect_after_s * S)
    return reached_us > max(taken_on_us(node), ours_us)


def may_save(d: PlanBuilder, node: Node) -> bool:
    """Return whether the node has to release because a mate has; it gets its grace."""
    ended = node.training.exit_code is not None or node.training.released_at_us
    if node.state is not NodeState.DRAINING or ended or not mate_released(node, d.view):
        return False
    if not node.agent.told_release_at_us:
        return (
            node.call.effect is not EffectKind.RELEASE or node.call.effect_failures < RELEASE_TRIES
        )
    return d.now_us < release_end_us(d, node)


def release_end_us(d: PlanBuilder, node: Node) -> int:
    margin_s = d.job.spec.timeouts.stop_grace_s + d.market.timing.drain_margin_s
    return node.agent.told_release_at_us + int(margin_s * S)


def keep_gang(d: PlanBuilder) -> None:
    """Keep a gang together: no rank is paid for while another is missing.

    Unless it is to continue without that one.
    """
    if d.job.spec.resources.num_nodes == 1:
        return
    stay = {node.id for node in remaining(d.view, d.now_us)}
    gangs = {(node.generation, node.candidate) for node in d.nodes}
    for generation, candidate in sorted(gangs):
        gang = [n for n in d.nodes if (n.generation, n.candidate) == (generation, candidate)]
        first = next((n for n in gang if n.state in LEAVING), None)
        draining = next((n for n in gang if n.state is NodeState.DRAINING), None)
        for node in gang:
            if node.departure.kept_until_us > d.now_us:
                continue  # for its user, who looks at this one: its agent keeps it as long alone
            if first is not None and not may_save(d, node):
                if node.id in stay:
                    continue  # see regrouping.py
                why = first.departure.leave_reason or LeaveReason.LOST
                d.terminate(node, why, f"rank {first.rank} left", keep=True)
            elif draining is not None and node.state is NodeState.RUNNING:
                d.drain(
                    node,
                    draining.departure.leave_reason,
                    f"rank {draining.rank} is being preempted",
                )
