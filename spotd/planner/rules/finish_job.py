"""End a job: by a final manifest, a limit, or the user's request; and clean up."""

from __future__ import annotations

from providers.dollars import format_microusd
from spotd.domain.events import Severity
from spotd.domain.failure import newest_failure
from spotd.domain.health import NAN, NAN_AFTER_RESUME
from spotd.domain.job import Desired
from spotd.domain.node import Node
from spotd.domain.preferences import NO_LIMIT
from spotd.domain.states import TRAINS_ON, LeaveReason, NodeState, Outcome
from spotd.domain.units import S
from spotd.planner.core.image_build import finish_bake
from spotd.planner.core.next_effect import end_unread
from spotd.planner.core.plan_builder import LEAVING, PlanBuilder
from spotd.planner.offers.preemptions import interruptions
from spotd.planner.rules.apply_observations import charge
from spotd.planner.rules.checkpoint_rollback import may_step_back, resumed_in_vain
from spotd.planner.rules.job_dependency import begins_us
from spotd.wire import EXIT_FINISHED

RANK_EXIT_S = 15.0  # for the other ranks of a gang to report their exits, after the first


def finish(d: PlanBuilder) -> None:
    """End the job successfully once HEAD has a final manifest, or its image exists."""
    finish_bake(d)
    head = d.job.head
    if d.ended or head is None or not head.final:
        return
    text = _result(d, head.step)
    d.set_job(outcome=Outcome.SUCCEEDED, outcome_text=text, finished_at_us=d.now_us)
    if d.job.kept_nothing:
        severity, text = Severity.WARNING, f"{d.job.name} finished: {text}"
        d.event("succeeded", text, severity=severity, alert=True, step=0, kept=False)
    else:
        d.event("succeeded", f"{d.job.name} {text}", alert=True, step=head.step)


def _result(d: PlanBuilder, step: int) -> str:
    """Return where the job ended, and where its files are."""
    if step:
        return f"finished at step {step}"
    if d.job.progress.outputs_at_us:
        return f"finished; its files are stored: spotctl outputs {d.job.name}"
    return _nothing_kept(d)


def _nothing_kept(d: PlanBuilder) -> str:
    """Describe the files that a job that saved nothing loses, and how to keep them."""
    exits = (n.training for n in d.nodes if n.rank == 0 and n.training.exit_code == EXIT_FINISHED)
    left = next((one.exit_tail for one in exits if one.exit_tail), "")
    wrote = f": the program left {left}" if left else ""
    return (
        f"nothing kept{wrote}; to keep a folder of it, write "
        "spotd: {checkpoint: {mode: directory, path: FOLDER}} into the job file"
    )


def obey_limits(d: PlanBuilder) -> None:
    """A job past its cost or duration saves and ends."""
    job, limits = d.job, d.job.spec.limits
    if d.ended or job.end.stop_text:
        return
    begun_us = begins_us(d)
    if limits.max_duration_s and begun_us is not None:
        end_us = begun_us + int(limits.max_duration_s * S)
        if d.now_us >= end_us:
            d.set_job(stop_text=f"max_duration of {limits.max_duration_s:.0f} s reached")
            return
        d.wake_at(end_us)
    if limits.max_cost_microusd:
        left = limits.max_cost_microusd - _spent_now(d)
        if left <= 0:
            reached = format_microusd(limits.max_cost_microusd)
            d.set_job(stop_text=f"max_cost_usd of {reached} reached")
            return
        rate = _rate_now(d)
        if rate:
            d.wake_at(d.now_us + left * 3600 * S // rate)


def stop_interrupted(d: PlanBuilder) -> None:
    """End a job that was interrupted more often than `max_interruptions`.

    It saves within its notice. The last entries of a lost machine's journal are read first.
    """
    most = d.job.spec.limits.caps.max_interruptions
    if most == NO_LIMIT or d.ended or d.job.end.stop_text:
        return
    many = interruptions(d.view.attempts, d.current)
    if many <= most or any(end_unread(node, d.view) for node in d.current):
        return
    d.set_job(stop_text=f"max_interruptions of {most} reached: it was interrupted {many} times")
    stop_wanted(d)


def stop_lost(d: PlanBuilder) -> None:
    """End a job whose losses are no longer finite: further training would be useless anywhere.

    A program with spotd's engine rolls back by itself first, and reports if that did not help. A
    program without it, whose losses failed after its resume, resumes from an older checkpoint once.
    """
    if d.ended or d.job.end.stop_text:
        return
    mine = {node.id: node for node in d.current if node.state is NodeState.RUNNING}
    diagnosed = {
        verdict.kind: mine[verdict.node_id]
        for verdict in d.view.verdicts
        if verdict.node_id in mine
    }
    if NAN in diagnosed:
        d.set_job(stop_text="training has diverged: its losses are no longer finite")
    elif (node := diagnosed.get(NAN_AFTER_RESUME)) and (resumed := resumed_in_vain(d, node)):
        text = "the losses have not been finite since the resume"
        if may_step_back(d, resumed):
            charge(d, node, text, at_once=True)
        elif d.view.setbacks.suspect:
            d.set_job(stop_text=f"training has diverged: {text}, from two checkpoints")


def _rate_now(d: PlanBuilder) -> int:
    return sum(n.offer.price_microusd_per_h for n in d.nodes if n.state is not NodeState.GONE)


def _spent_now(d: PlanBuilder) -> int:
    """Return the cost in the ledger when it was loaded, plus the cost of the active nodes since."""
    since_us = max(d.now_us - d.view.loaded_at_us, 0)
    return d.view.spent_microusd + _rate_now(d) * since_us // (3600 * S)


def _stop_reason(d: PlanBuilder) -> str:
    job = d.job
    if job.end.stop_text:
        return job.end.stop_text
    if job.desired is Desired.CANCEL:
        return "cancelled"
    asked_by, budget = job.approval.approval_asked_by, job.approval.approval_text
    if asked_by and job.desired is Desired.PAUSE:
        return (
            f"waits until an admin other than {asked_by} approves that it exceeds a budget "
            f"(`spotctl budget approve {job.name}`): {budget}"
        )
    return "paused" if job.desired is Desired.PAUSE else ""


def stop_wanted(d: PlanBuilder) -> None:
    """Cancel, pause or a limit: training saves first, an idle machine goes at once."""
    why = _stop_reason(d)
    if d.ended or not why:
        return
    d.add_reason(why)
    for node in d.nodes:
        if node.state in (NodeState.LAUNCHING, NodeState.BOOTING):
            if node.departure.kept_until_us <= d.now_us:
                d.terminate(node, LeaveReason.CANCELLED, why)
        elif node.state is NodeState.RUNNING and node.departure.kept_until_us <= d.now_us:
            d.drain(node, LeaveReason.CANCELLED, why)
            d.event("draining", f"saving and stopping: {why}", node)
        elif node.state is NodeState.DRAINING:
            _stop_drained(d, node, why)
    saving = [n for n in d.nodes if n.state not in LEAVING and not n.departure.kept_until_us]
    if saving:
        uploads = any(node.storage.outputs_since_us for node in saving)
        d.add_reason(f"waiting for {'its outputs to be stored' if uploads else 'the last save'}")
        return
    if d.job.end.stop_text:
        _fail(d, d.job.end.stop_text)
    elif d.job.desired is Desired.CANCEL and all(n.state is NodeState.GONE for n in d.nodes):
        d.set_job(outcome=Outcome.CANCELLED, outcome_text="cancelled", finished_at_us=d.now_us)
        d.event("cancelled", f"{d.job.name} is cancelled; no machine of it is left")


def _stop_drained(d: PlanBuilder, node: Node, why: str) -> None:
    """Ask a draining node, which trained after its notice, to save now; its grace period begins."""
    if node.departure.leave_reason in TRAINS_ON and not node.agent.told_drain_at_us:
        d.set_node(
            node,
            leave_reason=LeaveReason.CANCELLED,
            leave_text=why,
            drained_at_us=d.now_us,
        )
        d.event("draining", f"saving and stopping: {why}", node)


def _fail(d: PlanBuilder, text: str) -> None:
    d.set_job(outcome=Outcome.FAILED, outcome_text=text, finished_at_us=d.now_us)
    step = d.job.head.step if d.job.head else 0
    note = f"; the checkpoint of step {step} is retained" if step else ""
    failure = newest_failure(d.nodes)
    cause = failure.label if failure and text.startswith(failure.text) else ""
    text = f"{d.job.name} failed: {text}{note}"
    d.event("failed", text, severity=Severity.ERROR, alert=True, cause=cause)


def clean_up(d: PlanBuilder) -> None:
    """Give back every machine of an ended job, except one retained for its user."""
    if not d.ended:
        return
    reason = LeaveReason.DONE if d.job.outcome is Outcome.SUCCEEDED else LeaveReason.CANCELLED
    for node in d.nodes:
        if node.departure.kept_until_us > d.now_us and d.job.desired is not Desired.CANCEL:
            d.wake_at(node.departure.kept_until_us)
        elif (end_us := _exit_awaited_us(d, node)) > d.now_us:
            d.wake_at(end_us)
        else:
            d.terminate(node, reason, d.job.end.outcome_text, keep=True)
    left = sum(1 for node in d.nodes if node.state is not NodeState.GONE)
    if left:
        machines = "1 machine" if left == 1 else f"{left} machines"
        d.add_reason(f"{d.job.end.outcome_text}; {machines} not confirmed as gone yet")
    else:
        d.add_reason(d.job.end.outcome_text)


def _exit_awaited_us(d: PlanBuilder, node: Node) -> int:
    """Return until when a rank may still report its exit; 0 if it is not waited for.

    Rank 0 answers for its gang. The last output of the other ranks comes before their exits.
    """
    awaited = (
        d.job.outcome is Outcome.SUCCEEDED
        and node.rank
        and node.chosen
        and node.state is NodeState.RUNNING
        and node.training.exit_code is None
        and not node.agent.link_down_at_us
    )
    return d.job.end.finished_at_us + int(RANK_EXIT_S * S) if awaited else 0
