"""Turn observations into states: the first rules of every pass."""

from __future__ import annotations

from typing import Any

from spotd.domain.events import Severity
from spotd.domain.failure import describe_exit, failure_of
from spotd.domain.health import CRASHED
from spotd.domain.job import Desired
from spotd.domain.lost_work import describe_lost_work, lost_work
from spotd.domain.node import Node
from spotd.domain.phase import keeps
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.core.backoff import backoff_s
from spotd.planner.core.gangs import (
    gang_finished_us,
    newcomers,
    remaining,
    scripts_gang,
    size_of,
    taken_on_us,
)
from spotd.planner.core.image_build import bake
from spotd.planner.core.next_effect import hearing_since_us, may_have_finished, suspect
from spotd.planner.core.plan_builder import LEAVING, PlanBuilder, blamed, place
from spotd.planner.rules.checkpoint_rollback import may_step_back, resumed_in_vain, step_back
from spotd.planner.rules.replace_node import gang_of, taking_away
from spotd.wire import (
    EXIT_DIVERGED,
    EXIT_FENCED,
    EXIT_FINISHED,
    EXIT_RELEASED,
    EXIT_UNFIT,
)

_TRY_AGAIN = frozenset({EXIT_RELEASED, EXIT_FENCED})
HEAD_PATIENCE_S = 600.0  # for HEAD to be read after an exit 0
GANG_FINAL_S = 60.0  # for rank 0 to commit that its gang has finished


def settle_observed(d: PlanBuilder) -> None:
    """Apply what the cloud and the node reported: launched, refused, gone, first step."""
    for node in d.nodes:
        if node.state is NodeState.GONE:
            continue
        coming = node.state in (NodeState.LAUNCHING, NodeState.BOOTING)
        if node.machine.gone_at_us and node.machine.launch_error and coming:
            _refused(d, node)
        elif node.machine.gone_at_us:
            _gone(d, node)
        elif node.state is NodeState.LAUNCHING and node.machine.launch_error:
            text = f"{node.machine.launch_error}; an earlier request may have made a machine"
            d.terminate(node, LeaveReason.CAPACITY, text)
        elif node.state is NodeState.LAUNCHING and node.instance_id:
            d.set_node(node, state=NodeState.BOOTING)
            d.event("launched", f"{place(node)} exists as {node.instance_id}", node)
    settle_trained(d)


def settle_trained(d: PlanBuilder) -> None:
    """Set chosen nodes that train to running.

    A node that a restored database still records as starting is chosen when its agent reports, and
    may have trained for a long time.
    """
    for node in d.nodes:
        if node.state is NodeState.BOOTING and node.chosen and not node.machine.gone_at_us:
            if node.training.first_step_at_us:
                _running(d, node)
            elif _gang_trains(d, node):
                d.set_node(node, state=NodeState.RUNNING)


def _running(d: PlanBuilder, node: Node) -> None:
    d.set_node(node, state=NodeState.RUNNING)
    if node.generation == 1:
        d.event("training", f"training on {place(node)}", node)
        return
    took = (node.training.first_step_at_us - taken_on_us(node)) / S
    what = "its gang was restarted" if node.moved_at_us else "the request"
    after = f"{took:.1f} s after {what}"
    hand_over = d.view.hand_over
    if hand_over is None:  # no attempt before it trained
        d.event("training", f"training on {place(node)}, {after}", node)
        return
    resumed = node.training.resumed_step
    lost = lost_work(hand_over, resumed)
    data: dict[str, Any] = {
        "seconds": took,
        "step": resumed,
        "steps_lost": lost.steps,
        "lost_s": lost.seconds,
        "lost_microusd": lost.microusd,
        "anew": lost.anew,
    }
    if hand_over.old.failed:
        text = f"after its program failed, it was started again on {place(node)}"
        text = f"{text}{_from_step(d, resumed)}; {describe_lost_work(lost)}"
        d.event("restarted", text, node, **data)
        return
    text = f"training again on {place(node)}{_from_step(d, resumed)}, {after}"
    severity = Severity.WARNING if lost.anew else Severity.INFO
    text = f"{text}; {describe_lost_work(lost)}"
    if hand_over.reports_steps and not hand_over.old.gave_back:
        text = f"{text}, by its last report"  # steps after that are not on record
    if not hand_over.reports_steps:  # later, its agent tells
        text += ", unless it keeps its work elsewhere" if lost.anew else ", if its program resumes"
    d.event("recovered", text, node, severity=severity, alert=True, **data)


def _from_step(d: PlanBuilder, resumed: int | None) -> str:
    """Describe the step that it resumes from and the one reached before, if both are known."""
    hand_over = d.view.hand_over
    if resumed is None or hand_over is None or (not resumed and not hand_over.saved_at_us):
        return ""
    reached = hand_over.old.last_step
    known = hand_over.reports_steps and reached > resumed
    return f" from step {resumed} (it had reached {reached})" if known else f" from step {resumed}"


def _gang_trains(d: PlanBuilder, node: Node) -> bool:
    """Rank 0 reports its steps for all ranks of our engine: none of them steps without the others.
    A script's ranks each speak for themselves."""
    if not (node.chosen and node.startup.started_at_us) or d.job.spec.checkpoint.engine == "none":
        return False
    key = (node.generation, node.candidate, 0)
    first = (n for n in d.nodes if (n.generation, n.candidate, n.rank) == key)
    return any(rank_0.training.first_step_at_us for rank_0 in first)


def _refused(d: PlanBuilder, node: Node) -> None:
    d.set_node(
        node,
        state=NodeState.GONE,
        leave_reason=LeaveReason.CAPACITY,
        leave_text=node.machine.launch_error,
        left_at_us=d.now_us,
    )
    text = f"{place(node)} was refused: {node.machine.launch_error}"
    d.event("refused", text, node, cause=node.machine.launch_error)
    _obey_rejection(d, node)


def _obey_rejection(d: PlanBuilder, node: Node) -> None:
    """A request that the cloud calls wrong is not made again."""
    if node.machine.launch_error_code == "RejectedError" and d.job.desired is not Desired.CANCEL:
        text = f"the cloud rejects the request: {node.machine.launch_error}"
        d.set_job(stop_text=d.job.end.stop_text or text)


def _gone(d: PlanBuilder, node: Node) -> None:
    if node.departure.leave_reason is LeaveReason.CAPACITY and all(
        n.state in LEAVING for n in d.nodes
    ):
        _obey_rejection(d, node)  # in doubt until now, and no other cloud took the request
    noticed = any(notice.takes_machine for notice in node.notices)
    if node.departure.leave_reason is not None:
        reason, text = node.departure.leave_reason, node.departure.leave_text
    elif noticed:
        reason, text = LeaveReason.PREEMPTED, "preempted after its notice"
    elif not node.machine.launched_at_us:
        reason, text = LeaveReason.CAPACITY, "the request created no machine"
    else:
        reason, text = LeaveReason.LOST, "the cloud no longer has it, and gave no notice"
        if blamed(node, reason) is LeaveReason.DRILL:
            reason, text = LeaveReason.DRILL, "ended by a drill"
    d.set_node(
        node,
        state=NodeState.GONE,
        leave_reason=reason,
        leave_text=text,
        left_at_us=node.departure.left_at_us or d.now_us,
    )
    if node.state not in LEAVING and node.state is not NodeState.DRAINING:
        trained = node.state is NodeState.RUNNING
        d.event(
            "lost", f"{place(node)} is gone: {text}", node, severity=Severity.WARNING, alert=trained
        )
    else:
        d.event("gone", f"{place(node)} is gone ({reason.value})", node)
    record_wipe(d, node, reason)


def settle_exits(d: PlanBuilder) -> None:
    """Terminate nodes whose program has ended; charge only its own crash to the job."""
    for node in d.nodes:
        if node.state in LEAVING or node.training.exit_code is None:
            if node.training.setup_failed and node.state not in LEAVING:
                _setup_failed(d, node)
            continue
        if (
            node.training.exit_code == EXIT_RELEASED
            and node.state is NodeState.DRAINING
            and _stays(d, node)
        ):
            continue  # see regrouping.py
        match node.training.exit_code:
            case code if code == EXIT_FINISHED:
                _finished(d, node)
            case code if code == EXIT_RELEASED and _asked_to_stop(node):
                d.terminate(node, LeaveReason.PREEMPTED, _stopped(d, node), keep=True)
            case code if code == EXIT_FENCED and _is_fenced(d, node):
                d.terminate(node, LeaveReason.LOST, "fenced by a newer generation", keep=True)
            case code if code == EXIT_UNFIT:
                d.terminate(node, LeaveReason.LOST, _unfit(node), keep=True)
            case code if code == EXIT_DIVERGED:
                _diverged(d, node)
            case _:
                _crashed(d, node)


def _stays(d: PlanBuilder, node: Node) -> bool:
    """Return whether the machine continues in the next attempt with the other remaining ones."""
    return any(other.id == node.id for other in remaining(d.view, d.now_us))


def _stopped(d: PlanBuilder, node: Node) -> str:
    """Return the message for a stopped program; whether a script saved anything may be unknown."""
    if not node.training.released_at_us:
        return "stopped as ordered"
    if not keeps(d.job.spec.checkpoint):
        return "stopped and released"
    if d.job.head is not None and not d.job.head.manifest:
        return "stopped and released; nothing was saved"
    step = d.job.head.step if d.job.head else node.training.last_step
    return f"saved at step {step} and released"


def _unfit(node: Node) -> str:
    """Return the last output of a node that never trained, which shows its problem."""
    if node.training.first_step_at_us or not node.training.exit_tail:
        return "its GPU has failed"
    return f"not fit to train on: {node.training.exit_cause or node.training.exit_tail}"


def _asked_to_stop(node: Node) -> bool:
    """Return whether the program stopped as requested, with exit code 75.

    If a program exits with 75 by itself, that counts as a crash.
    """
    if node.training.ended_as_asked:
        return True
    noticed = any(notice.kind.takes_machine for notice in node.notices)
    return noticed or node.state is NodeState.DRAINING


def _is_fenced(d: PlanBuilder, node: Node) -> bool:
    """Return whether a newer attempt fenced the program off, which exit code 76 says."""
    return node.training.ended_as_asked or node.generation < d.job.generation


def _finished(d: PlanBuilder, node: Node) -> None:
    """Exit 0 counts when HEAD is final; until HEAD was read after the exit, nothing is decided."""
    if d.job.spec.program.bake:
        bake(d, node)
        return
    head = d.job.head
    if head is not None and head.final:
        return
    if scripts_gang(d.job):
        _await_gang(d, node)
    elif node.rank:
        return  # rank 0 answers for its gang
    elif head is not None and head.read_at_us >= node.training.exited_at_us:
        charge(d, node, "the program exited 0 without a final checkpoint")
    else:
        _await_head(d, node)


def _await_head(d: PlanBuilder, node: Node) -> None:
    """Wait for HEAD to be read, but not for ever if the store does not answer.

    No other machine is requested before: it might only find that everything is done.
    """
    end_us = node.training.exited_at_us + int(HEAD_PATIENCE_S * S)
    if d.now_us < end_us:
        code = node.training.exit_code
        d.add_reason(f"{place(node)} exited {code}; waiting for its last checkpoint to be read")
        d.wake_at(end_us)
        return
    error = f" ({node.call.effect_error})" if node.call.effect_error else ""
    patience = f"{HEAD_PATIENCE_S / 60:.0f} min{error}"
    code = node.training.exit_code
    text = f"exited {code}, and its last checkpoint could not be read for {patience}"
    words = (
        f"{place(node)} {text}: it is terminated, and no other machine is requested until then; "
        f"give spotd read access to {d.job.spec.checkpoint.store}, which it keeps trying to read"
    )
    cause = node.call.effect_error
    d.event("unconfirmed", words, node, severity=Severity.ERROR, alert=True, cause=cause)
    d.terminate(node, LeaveReason.DONE, text)


def _await_gang(d: PlanBuilder, node: Node) -> None:
    """Wait for rank 0 to record in HEAD that all ranks exited with 0."""
    ended_us = gang_finished_us(node, d.view)
    if node.rank or not ended_us:
        return
    end_us = ended_us + int(GANG_FINAL_S * S)
    if d.now_us < end_us:
        d.wake_at(min(end_us, d.now_us + int(d.market.timing.resurvey_s * S)))
        return
    error = f" ({node.call.effect_error})" if node.call.effect_error else ""
    charge(d, node, f"all ranks exited 0, but the end of the job could not be recorded{error}")


def _diverged(d: PlanBuilder, node: Node) -> None:
    """Fail the job: it went back as often as it may, and another machine would end the same."""
    d.set_job(stop_text=d.job.end.stop_text or "training diverged: no finite loss after going back")
    _leave_failed(d, node, "training diverged")


def _setup_failed(d: PlanBuilder, node: Node) -> None:
    if any(other.id == node.id for other in newcomers(d.view)):
        # Others are set up, and train: it is this machine, or this hour.
        d.terminate(
            node, LeaveReason.BOOT_TIMEOUT, ("setup failed; its gang keeps training without it")
        )
        return
    failure = failure_of(node)
    text, cause = (failure.text, failure.cause) if failure else ("setup failed", "")
    why = f" ({cause[:200]})" if cause else ""
    d.set_job(stop_text=d.job.end.stop_text or f"{text}{why}; see `spotctl logs`")
    d.event(
        "setup_failed",
        f"{text} on {place(node)}",
        node,
        severity=Severity.ERROR,
        tail=node.training.exit_tail,
        cause=failure.label if failure else "",
    )
    _leave_failed(d, node, text)


def _crashed(d: PlanBuilder, node: Node) -> None:
    """Handle a crash after its causes are known.

    A final manifest means success whatever happened after it, and a lost machine of the gang may
    have caused the crash. Both are checked before a crash is charged.
    """
    if d.job.head is not None and d.job.head.final:
        return
    if may_have_finished(node, d.view):
        _await_head(d, node)
    elif blamed(node, LeaveReason.FAILED) is LeaveReason.DRILL:
        d.terminate(
            node,
            LeaveReason.DRILL,
            f"hit by a drill: exited with code {node.training.exit_code}",
        )
    elif not _broken_by_a_machine(d, node):
        charge(d, node, describe_exit(node))


def _broken_by_a_machine(d: PlanBuilder, node: Node) -> bool:
    """Return whether a lost machine of the gang may have caused the crash.

    Ranks fail within moments when one of them is lost, long before the loss is known. In that case
    the rank is terminated uncharged.
    """
    spec = d.job.spec
    if (
        spec.resources.num_nodes == 1
        or node.training.exit_code in spec.restarts.recover_on_exit_codes
        or _blamed(d, node)
    ):
        return False
    gang = gang_of(d, node)
    left = next((mate for mate in gang if mate.state in LEAVING or taking_away(mate)), None)
    if left is not None or len(gang) < size_of(node, spec):  # a view has no old that are gone
        if _stays(d, node):
            return True
        reason = left.departure.leave_reason if left is not None else LeaveReason.LOST
        rank = f"rank {left.rank}" if left is not None else "another rank"
        text = f"exited with code {node.training.exit_code} when {rank} left"
        d.terminate(node, reason or LeaveReason.PREEMPTED, text, keep=True)
        return True
    since_us = max(node.training.exited_at_us, hearing_since_us(node, d.market))
    end_us = since_us + int(d.market.timing.suspect_after_s * S)
    if d.now_us < end_us:
        d.add_reason(
            f"{place(node)} exited with code {node.training.exit_code}; looking for its other ranks"
        )
        d.wake_at(end_us)
        return True
    silent = next((mate for mate in gang if suspect(mate, d.market, d.now_us)), None)
    if silent is None:
        return False
    if _stays(d, node):
        d.add_reason(f"{place(node)} waits until it is known whether rank {silent.rank} is lost")
        return True
    text = f"exited with code {node.training.exit_code} when rank {silent.rank} fell silent"
    d.terminate(node, LeaveReason.LOST, text, keep=True)
    return True


def charge(d: PlanBuilder, node: Node, text: str, *, at_once: bool = False) -> None:
    """Spend the failure budget, or end the job when it is used up.

    Exit codes that the user listed are retried without a charge. A program that crashed before the
    job's first step is not retried, because the next machine would see the same; one that ended
    with 75 or 76 by itself is, for these say to try again. The second crash within the first steps
    after the same checkpoint steps back from it, or the first, `at_once`. A mistake ends all
    programs of a gang before that; one that fails alone may have lost contact to another that hung.
    """
    job, spec = d.job, d.job.spec
    if _blamed(d, node):
        _leave_failed(d, node, text)
        return
    free = node.training.exit_code in spec.restarts.recover_on_exit_codes
    failures = job.backoff.failures + (0 if free else 1)
    d.set_job(failures=failures)
    alone = any(mate.training.exit_code is None for mate in gang_of(d, node))
    in_vain = not job.progress.first_step_at_us and node.training.exit_code not in _TRY_AGAIN
    if in_vain and not free and not alone:
        d.set_job(stop_text=f"{text} before its first step")
        what_next = ""
    elif failures > spec.restarts.max_restarts_on_errors and not free:
        d.set_job(
            stop_text=f"{text}; restarts on errors used up ({spec.restarts.max_restarts_on_errors})"
        )
        what_next = ""
    else:
        pause_s = backoff_s(failures if not free else 1)
        d.set_job(place_after_us=d.now_us + int(pause_s * S))
        left = max(spec.restarts.max_restarts_on_errors - failures, 0)
        count = "not counted (recover_on_exit_codes)" if free else f"then {left} more"
        what_next = f"; tried again in {pause_s:.0f} s, {count}"
    resumed = resumed_in_vain(d, node)
    d.event(
        CRASHED,
        f"{text} on {place(node)} at step {node.training.last_step}{what_next}",
        node,
        severity=Severity.ERROR,
        alert=True,
        tail=node.training.exit_tail,
        cause=failure.label if (failure := failure_of(node)) else "",
        **({"resumed": resumed.manifest} if resumed else {}),
    )
    if what_next and resumed and may_step_back(d, resumed):
        if at_once:
            step_back(d, resumed, text)
        elif d.view.setbacks.crashed_from == resumed.manifest:
            step_back(d, resumed, f"{text}, again in the first steps")
    _leave_failed(d, node, text)


def _blamed(d: PlanBuilder, node: Node) -> bool:
    """Return whether the crash is charged already.

    One crash in several ranks is charged once, and not at all if the job ends or continues without
    this node.
    """
    charged = any(
        other.departure.leave_reason is LeaveReason.FAILED and other.generation == node.generation
        for other in d.nodes
    )
    # A newer attempt that has chosen nobody took nothing over: its notice may be withdrawn.
    replaced = any(other.chosen and other.generation > node.generation for other in d.nodes)
    return d.ended or replaced or bool(d.job.end.stop_text) or charged


def _leave_failed(d: PlanBuilder, node: Node, text: str) -> None:
    """Terminate a failed node, or keep it for its user for `keep_on_failure`."""
    keep_s = d.job.spec.restarts.keep_on_failure_s
    ending = d.ended or d.job.end.stop_text
    if keep_s and ending and not node.departure.kept_until_us:
        d.set_node(node, kept_until_us=d.now_us + int(keep_s * S))
        d.event("kept", f"{place(node)} is retained for {keep_s:.0f} s (keep_on_failure)", node)
    fresh = next(n for n in d.nodes if n.id == node.id)
    if fresh.departure.kept_until_us > d.now_us:
        d.wake_at(fresh.departure.kept_until_us)
        return
    d.terminate(node, LeaveReason.FAILED, text)


def record_wipe(d: PlanBuilder, node: Node, reason: LeaveReason) -> None:
    """Add an event about whether, where, when and how the node's disks were wiped.

    There is no event for a node that never had data on them. The cloud discards disks in any case;
    the event records the node's own report.
    """
    if not node.startup.booted_at_us:
        return
    where = f"{place(node)}, {node.offer.region}"
    wiped = bool(node.storage.wiped_at_us)
    after_s = max(0.0, (node.storage.wiped_at_us - node.training.exited_at_us) / S)
    text = (
        f"{where}: disks wiped {after_s:.1f} s after the program ended: {node.storage.wiped_text}"
        if wiped
        else f"{where}: disks not wiped, as far as known: {reason.value}"
    )
    d.event(
        "wipe",
        text,
        node,
        region=node.offer.region,
        instance=node.instance_id,
        wiped_at_us=node.storage.wiped_at_us,
        how=node.storage.wiped_text,
        why_not="" if wiped else reason.value,
    )
