"""Judge a drill: whether the job recovered as required, by its record since the fault.

A fault with a save loses no step. A kill loses the training since the last checkpoint, at most one
interval. Losses continue without a jump, the old machine is gone, and nothing was requested twice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spotd.domain.fault_drill import SAVES, SLACK_S, DrillEnd, DrillKind, FaultDrill, Findings
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.domain.units import S

NEAR = 40  # steps that are compared on either side
LEAST = 8  # minimum number of steps on either side
MOST_SIGMAS = 3.0  # above that the losses jump
MOST = 1e100


# A machine that was requested after the fault and left for one of these reasons may be replaced.
_EXCUSED = frozenset(
    {LeaveReason.CAPACITY, LeaveReason.BOOT_TIMEOUT, LeaveReason.HEDGE_LOST}
    | {LeaveReason.PREEMPTED, LeaveReason.LOST}
)


@dataclass(frozen=True)
class Report:
    """A machine's report of steps, received at `at_us`, with a loss for each step if known."""

    generation: int
    from_step: int
    to_step: int
    losses: tuple[float, ...]
    at_us: int


@dataclass(frozen=True)
class Save:
    """A checkpoint: its step, when it was committed, and how many seconds it took."""

    generation: int
    step: int
    at_us: int
    took_s: float


@dataclass(frozen=True)
class DrillRecord:
    """The job's record.

    `claims` is node -> the step that it resumed from. `paid` is (from, until, micro-USD per hour)
    of its machines, until 0 while they run. `pause_s` is the longest normal time between two saves.
    """

    job: Job
    nodes: Sequence[Node]
    reports: Sequence[Report]
    saves: Sequence[Save]
    claims: Mapping[str, int]
    paid: Sequence[tuple[int, int, int]]
    pause_s: float


def judge(drill: FaultDrill, record: DrillRecord, now_us: int) -> FaultDrill | None:
    """Return the finished drill, or None while something is still awaited.

    The fault of `drill` was injected.
    """
    old = next(node for node in record.nodes if node.id == drill.node_id)
    late = now_us > drill.struck_at_us + int((drill.within_s + SLACK_S) * S)
    ended = record.job.outcome is not None
    if drill.kind is DrillKind.AGENT:
        return _judge_agent(drill, record, old, now_us, late=late or ended)
    newer = [node for node in record.nodes if node.generation > old.generation]
    new = next((n for n in newer if n.chosen and n.training.first_step_at_us and not n.rank), None)
    if new is None:
        if not (late or ended or _past_deadline(drill, now_us)):
            return None
        how = "the job ended before that" if ended else f"within {drill.within_s:.0f} s"
        cost = _cost(record, drill.struck_at_us, now_us)
        return _finish(drill, now_us, [f"it did not train again, {how}"], cost)
    losses = _losses(record, new)
    full = len(losses[1]) >= NEAR or not losses[0]
    if not (late or ended) and (old.state is not NodeState.GONE or not full):
        return None
    return _judge_recovery(drill, record, old, new, losses, now_us)


def _past_deadline(drill: FaultDrill, now_us: int) -> bool:
    return now_us > drill.struck_at_us + int(drill.within_s * S)


def _judge_recovery(
    drill: FaultDrill,
    record: DrillRecord,
    old: Node,
    new: Node,
    losses: tuple[list[float], list[float]],
    now_us: int,
) -> FaultDrill:
    problems = []
    reached = max([old.training.last_step, *(r.to_step for r in _reports_of(record, old))])
    resumed = record.claims.get(new.id)
    took_s = (new.training.first_step_at_us - drill.struck_at_us) / S
    seam = seam_of(*losses)
    lost = None if resumed is None or not reached else max(0, reached - resumed)
    until_us = max(new.training.first_step_at_us, old.machine.gone_at_us)
    findings = Findings(
        reached_step=reached or None,
        resumed_step=resumed,
        lost_steps=lost,
        first_step_s=round(took_s, 1),
        sigmas=None if seam is None else round(seam[0], 2),
        cost_microusd=_cost(record, drill.struck_at_us, until_us),
    )
    if took_s > drill.within_s:
        problems.append(f"its first step came after {took_s:.0f} s, not {drill.within_s:.0f}")
    problems += _lost_too_much(drill, record, old, findings)
    problems += _loss_problems(seam, *losses)
    if old.state is not NodeState.GONE:
        problems.append(f"its old machine is still there ({old.instance_id or old.id})")
    twice = [
        node.id
        for node in record.nodes
        if node.generation > old.generation and node.instance_id and node.id != new.id
        if node.departure.leave_reason not in _EXCUSED
    ]
    if twice:
        problems.append(f"more than one machine was requested: {', '.join(twice)}")
    return _finish(drill, now_us, problems, findings)


def _lost_too_much(
    drill: FaultDrill, record: DrillRecord, old: Node, findings: Findings
) -> list[str]:
    own_saves = [save for save in record.saves if save.generation <= old.generation]
    if findings.resumed_step is None:
        text = "the step that it resumed from is not on record"
    elif drill.kind in SAVES:
        text = _unsaved(drill, own_saves, findings.lost_steps)
    else:
        text = _late_saved(drill, record, old, own_saves, findings)
    return [text] if text else []


def _unsaved(drill: FaultDrill, own_saves: Sequence[Save], lost_steps: int | None) -> str:
    if lost_steps:
        return f"{lost_steps} steps were lost, and it had time to save them"
    if lost_steps is None and not any(save.at_us >= drill.struck_at_us for save in own_saves):
        return "it saved nothing when it was stopped"
    return ""


def _late_saved(
    drill: FaultDrill, record: DrillRecord, old: Node, own_saves: Sequence[Save], findings: Findings
) -> str:
    spec, resumed, lost = record.job.spec, findings.resumed_step or 0, findings.lost_steps or 0
    known = [save for save in own_saves if save.at_us <= drill.struck_at_us]
    newest = max(known, key=lambda save: save.step, default=None)
    if newest is None:
        return "there was no checkpoint to resume from"
    if resumed < newest.step:
        return f"it resumed from step {resumed}, before its checkpoint {newest.step}"
    every, took_s = spec.checkpoint.every_steps, max(save.took_s for save in own_saves)
    if every and lost > every + _steps_in(record, old, took_s):
        return f"{lost} steps were lost, and it saves every {every}"
    # A checkpoint of an earlier machine is only as old as the training since then.
    age_s = (drill.struck_at_us - max(newest.at_us, old.training.first_step_at_us)) / S
    if not every and age_s > record.pause_s + took_s + spec.monitoring.progress_every_s:
        return f"its checkpoint was {age_s:.0f} s old, and it saves every {record.pause_s:.0f}"
    return ""


def _steps_in(record: DrillRecord, node: Node, seconds: float) -> int:
    """Return the steps that the node trains in that time at its own mean pace.

    A save in progress is not a save.
    """
    reports = _reports_of(record, node)
    if len(reports) < 2 or reports[-1].at_us <= reports[0].at_us:
        return 0
    rate = (reports[-1].to_step - reports[0].to_step) / ((reports[-1].at_us - reports[0].at_us) / S)
    return int(rate * (seconds + record.job.spec.monitoring.progress_every_s)) + 1


def _losses(record: DrillRecord, new: Node) -> tuple[list[float], list[float]]:
    """Return the losses before the resume point, and those after it.

    Before it counts the machine that trained each step last.
    """
    resumed = record.claims.get(new.id, 0)
    earlier = [report for report in record.reports if report.generation < new.generation]
    before = _by_step(sorted(earlier, key=lambda report: report.generation))
    after = _by_step(_reports_of(record, new))
    near = [before[step] for step in sorted(before) if step <= resumed]
    return near[-NEAR:], [after[step] for step in sorted(after) if step > resumed][:NEAR]


def _loss_problems(
    seam: tuple[float, float] | None, before: Sequence[float], after: Sequence[float]
) -> list[str]:
    """Return what is wrong with the losses, if anything."""
    if all(map(is_loss, before)) and not all(map(is_loss, after)):
        return ["its losses are no longer finite"]
    if seam is not None and seam[0] > seam[1]:
        return [f"its losses are {seam[0]:.1f} sigma off the trend before"]
    return []


def _by_step(reports: Sequence[Report]) -> dict[int, float]:
    """Return the losses by step, of reports that have one for every step."""
    return {
        report.from_step + at: loss
        for report in reports
        if len(report.losses) == report.to_step - report.from_step + 1
        for at, loss in enumerate(report.losses)
    }


def _judge_agent(
    drill: FaultDrill, record: DrillRecord, node: Node, now_us: int, *, late: bool
) -> FaultDrill | None:
    """Judge a fault of the agent: the program trains on, and the next agent reports it."""
    reports = _reports_of(record, node)
    before = [report for report in reports if report.at_us <= drill.struck_at_us]
    after = [report for report in reports if report.at_us > drill.struck_at_us]
    ended = record.job.outcome is Outcome.SUCCEEDED and bool(after)
    alive = ended or (node.state is NodeState.RUNNING and node.training.exit_code is None)
    reached = max((report.to_step for report in before), default=0)
    old, losses = _by_step(before), _by_step(after)
    back = node.startup.booted_at_us > drill.aimed_at_us and bool(after)
    enough = back and (len(losses) >= NEAR or not old)
    if alive and not (late or enough or _past_deadline(drill, now_us)):
        return None
    problems = []
    if not alive:
        problems.append("its machine was left, and the program could have trained on")
    elif not back:
        problems.append(f"no other agent reported it within {drill.within_s:.0f} s")
    first = after[0] if after else None
    took_s = (first.at_us - drill.struck_at_us) / S if first else None
    resumed = first.from_step - 1 if first else None
    lost = max(0, reached - resumed) if resumed is not None else None
    if lost:
        problems.append(f"{lost} steps were trained twice")
    both = (
        [old[step] for step in sorted(old)][-NEAR:],
        [losses[step] for step in sorted(losses)][:NEAR],
    )
    seam = seam_of(*both)
    problems += _loss_problems(seam, *both)
    findings = Findings(
        reached_step=reached or None,
        resumed_step=resumed,
        lost_steps=lost,
        first_step_s=None if took_s is None else round(took_s, 1),
        sigmas=None if seam is None else round(seam[0], 2),
    )
    return _finish(drill, now_us, problems, findings)


def _reports_of(record: DrillRecord, node: Node) -> list[Report]:
    return [report for report in record.reports if report.generation == node.generation]


def _cost(record: DrillRecord, since_us: int, until_us: int) -> int:
    """Return what all its machines cost in that time, in micro-USD."""
    return sum(
        max(0, min(end_us or until_us, until_us) - max(start_us, since_us)) * rate // (3600 * S)
        for start_us, end_us, rate in record.paid
    )


def _finish(
    drill: FaultDrill, now_us: int, problems: Sequence[str], findings: Findings | int
) -> FaultDrill:
    if isinstance(findings, int):
        findings = Findings(cost_microusd=findings)
    end = DrillEnd.FAILED if problems else DrillEnd.PASSED
    return replace(drill, ended_at_us=now_us, end=end, text="; ".join(problems), found=findings)


def is_loss(value: float) -> bool:
    """Return whether a value is a usable loss: finite, with a finite square."""
    return math.isfinite(value) and abs(value) < MOST


def sigmas_off(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return how far the mean of `after` is from the line through `before`, in standard deviations.

    The deviations are of single steps about that line. None for fewer than LEAST of either, or a
    loss that is not a number. Noiseless steps that meet the line are 0 off.
    """
    if min(len(before), len(after)) < LEAST or not all(map(is_loss, (*before, *after))):
        return None
    line = statistics.linear_regression(range(len(before)), before)
    noise = statistics.pstdev(
        loss - (line.intercept + line.slope * at) for at, loss in enumerate(before)
    )
    middle = len(before) + (len(after) - 1) / 2
    off = abs(statistics.mean(after) - (line.intercept + line.slope * middle))
    least = 1e-9 * max(map(abs, before))  # smaller differences are rounding errors
    return 0.0 if off <= least else off / max(noise, least)


def seam_of(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """Return how many sigmas `after` is off, and the bound above which that is a jump; None if
    unknown.

    A bent trend, as early in training, is off its own line without a jump: as far as the second
    half of `before` is off the first half's line, times the square of twice the length.
    """
    half = len(before) // 2
    off, bent = sigmas_off(before, after), sigmas_off(before[:half], before[half:])
    if off is None or bent is None:
        return None
    return off, max(MOST_SIGMAS, 4 * bent)
