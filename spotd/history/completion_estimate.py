"""Estimate a job's burn rate, remaining steps, completion time and final cost.

From its own record (reports of steps, interruptions, prices paid) and from this fleet's record of
such machines. If the record or the job file does not suffice, nothing is estimated and the reason
is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from spotd.domain.job import Desired, Job
from spotd.domain.market import Market
from spotd.domain.node import Node
from spotd.domain.node_history import LOSSES
from spotd.domain.phase import keeps
from spotd.domain.preferences import Preferences
from spotd.domain.states import NodeState
from spotd.domain.units import DAY_US, US_PER_H, S
from spotd.domain.work_total import named_total, total_steps, with_total
from spotd.history.completion_interval import Completion, Measurements, completion
from spotd.history.spot_value import hazard_of
from spotd.money.hour_breakdown import Segment, Steps
from spotd.planner.core.remaining_work import GENERATIONS, start_s
from spotd.planner.core.shard_stores import longest_pause_s
from spotd.planner.placement.build_situation import speed_of
from spotd.planner.placement.cost_to_finish import lives_of

HISTORY_US = 7 * DAY_US  # time from which hourly rates are sampled
SAMPLES = 48  # number of samples in that time
CUT_S = 600.0  # minimum training time of one stretch, for comparing paces

ENDED = "it has ended"
PAUSED = "it is paused"
NO_AMOUNT = "neither the job file nor the program says how much work there is"
NO_STEPS = "no steps of it were measured yet"
ANEW = "it keeps no checkpoints: it restarts from the beginning after each interruption"
NEVER = "its interruptions take as long as the time between them"
AMOUNT_ADVICE = "write spotd.work: 100000 steps, or 40h; or use run.steps(N)"


@dataclass(frozen=True)
class JobRecord:
    """The record of one job: all its machines with their ledger segments, and its reports."""

    job: Job
    nodes: Sequence[Node]
    stretches: Sequence[Segment]
    steps: Sequence[Steps]
    market: Market
    now_us: int

    @property
    def total_steps(self) -> int:
        """All steps; 0: not known."""
        return total_steps(self.job, named_total(self.nodes))

    @property
    def preferences(self) -> Preferences:
        """The job's preferences, with the total that its program names if the file has none."""
        return with_total(self.job, named_total(self.nodes)).spec.preferences


@dataclass(frozen=True)
class StepTimes:
    """Seconds per step over the newest generations, in total and per stretch."""

    step_s: float
    steps: int  # number of measured steps
    stretches: Sequence[float]


@dataclass(frozen=True)
class CompletionEstimate:
    """The estimate. Money is for machines only.

    `unknown` is the reason if no end is estimated; `completion` is None then. `step` is the last
    step, `saved_step` the one to which a sudden end would go back. The remaining work would cost
    `list_left_microusd` on-demand in the same place without interruptions, and
    `best_left_microusd` in the cheapest place; 0 if no price is known.
    """

    spent_microusd: int
    microusd_per_h: int
    mean_microusd_per_h: int  # of the last 24 h, or since it began
    step: int = 0
    saved_step: int = 0
    steps: int = 0  # total number of steps; 0: not given
    pace: StepTimes | None = None
    left_s: float = 0.0
    known: Measurements | None = None
    own_losses: int = 0  # interruptions of its own that were measured
    completion: Completion | None = None
    unknown: str = ""
    advice: str = ""
    list_left_microusd: int = 0
    best_left_microusd: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def final_microusd(self) -> tuple[int, int, int] | None:
        """Return the machines' final cost: low, middle, high."""
        if self.completion is None:
            return None
        cost = self.completion.cost
        low, middle, high = (round(value) for value in (cost.low, cost.middle, cost.high))
        return self.spent_microusd + low, self.spent_microusd + middle, self.spent_microusd + high


def estimate_completion(facts: JobRecord) -> CompletionEstimate:
    """Return the estimate at `now_us` for a job in any state."""
    job, total_steps, now_us = facts.job, facts.total_steps, facts.now_us
    rate = sum(segment.rate_microusd_per_h for segment in facts.stretches if segment.running)
    spent = sum(segment.spent(0, now_us) for segment in facts.stretches)
    pace, saved = step_times(facts.steps), job.head.step if job.head else 0
    step = max(saved, _reported(facts))
    unknown, advice = _obstacle(facts, pace)
    partial = CompletionEstimate(
        spent,
        rate,
        _mean(facts),
        step,
        saved,
        total_steps,
        pace,
        unknown=unknown,
        advice=advice,
    )
    newest_node = _newest(facts.nodes)
    if unknown or pace is None or newest_node is None:
        return partial
    left_s = _left_s(facts, pace, step, newest_node)
    own_losses_s = losses_s(facts)
    known = _known(facts, pace, left_s, own_losses_s, newest_node)
    result = completion(known)
    list_rate, best_rate = _on_demand(facts)
    left_h, nodes = left_s / 3600, job.spec.resources.num_nodes
    return CompletionEstimate(
        spent_microusd=spent,
        microusd_per_h=rate,
        mean_microusd_per_h=partial.mean_microusd_per_h,
        step=step,
        saved_step=saved,
        steps=total_steps,
        pace=pace,
        left_s=left_s,
        known=known,
        own_losses=len(own_losses_s),
        completion=result,
        unknown="" if result else NEVER,
        list_left_microusd=round(list_rate * nodes * left_h),
        best_left_microusd=round(best_rate * nodes * left_h),
        notes=_notes(known, len(own_losses_s)),
    )


def _obstacle(facts: JobRecord, pace: StepTimes | None) -> tuple[str, str]:
    """Return why no end can be estimated, and what would help."""
    job = facts.job
    if job.outcome is not None:
        return ENDED, ""
    if job.desired is not Desired.RUN:
        return PAUSED, f"spotctl resume {job.name}"
    if not facts.preferences.measurable:
        return NO_AMOUNT, AMOUNT_ADVICE
    if not keeps(job.spec.checkpoint):
        return ANEW, "checkpoint: {engine: spotd}"
    return (NO_STEPS, "") if pace is None else ("", "")


def step_times(steps: Sequence[Steps]) -> StepTimes | None:
    """Return the pace by wall time, including saves and evaluation; None if not measured.

    From report to report of one run; the first report counts by itself.
    """
    newest = sorted({row.generation for row in steps})[-GENERATIONS:]
    cuts: list[tuple[float, int]] = []
    for generation in newest:
        time_s, count = 0.0, 0
        for before, row in _neighbours([row for row in steps if row.generation == generation]):
            took_us = max(row.busy_us, row.last_at_us - row.first_at_us)
            if before is not None:
                took_us = row.last_at_us - before.last_at_us
            time_s, count = time_s + max(took_us, 0) / S, count + row.last - row.first + 1
            if time_s >= CUT_S:
                cuts.append((time_s, count))
                time_s, count = 0.0, 0
        if time_s:
            cuts.append((time_s, count))
    total_s, total_steps = sum(time_s for time_s, _ in cuts), sum(count for _, count in cuts)
    if not total_s or not total_steps:
        return None
    full = [cut for cut in cuts if cut[0] >= CUT_S / 2] or cuts
    return StepTimes(total_s / total_steps, total_steps, [time_s / count for time_s, count in full])


def _neighbours(rows: Sequence[Steps]) -> Iterator[tuple[Steps | None, Steps]]:
    """Yield each report with the one before of the same run; a step back begins another run."""
    before: Steps | None = None
    for row in rows:
        follows = before is not None and row.first > before.last
        yield (before if follows else None), row
        before = row


def losses_s(facts: JobRecord) -> list[float]:
    """Return the seconds that each finished interruption took.

    From the last step before it until training had come as far again and made a new step, for
    preempted or lost machines only.
    """
    interrupted = {
        node.generation
        for node in facts.nodes
        if node.departure.leave_reason in LOSSES and (node.chosen or node.startup.started_at_us)
    }
    behind = _behind(facts.steps)
    rows = sorted(facts.steps, key=lambda row: row.generation)
    losses = []
    for old, new in pairwise(rows):
        if old.generation == new.generation or old.generation not in interrupted:
            continue
        ended_us = old.last_at_us + behind[old.generation]
        again_us = _reached_us(rows, old, behind)
        if again_us:
            losses.append(max(0, again_us - ended_us) / S)
    return losses


def _behind(steps: Iterable[Steps]) -> dict[int, int]:
    """Return how far each generation's clock is behind ours, by the report received soonest."""
    delays_us: dict[int, int] = {}
    for row in steps:
        late_us = row.at_us - row.last_at_us
        delays_us[row.generation] = min(late_us, delays_us.get(row.generation, late_us))
    return delays_us


def _reached_us(rows: Sequence[Steps], old: Steps, behind: dict[int, int]) -> int:
    """Return when the step after `old`'s last was made, by our clock; 0 if not yet."""
    step = old.last + 1
    for row in rows:
        if row.generation > old.generation and row.last >= step:
            each_us = (row.last_at_us - row.first_at_us) / max(1, row.last - row.first)
            after = row.last - max(step, row.first)
            return round(row.last_at_us - after * each_us) + behind[row.generation]
    return 0


def _known(
    facts: JobRecord, pace: StepTimes, left_s: float, own_losses_s: Sequence[float], node: Node
) -> Measurements:
    spec, past = facts.job.spec, facts.market.history
    planned = start_s(past, facts.job.id) + longest_pause_s(node.offer, spec, facts.market) / 2
    hazard = hazard_of(node.offer, lives_of(past))
    return Measurements(
        left_s=left_s,
        paces=[segment_s / pace.step_s for segment_s in pace.stretches],
        losses_s=[*own_losses_s, planned],
        rates=_rates(facts),
        num_nodes=spec.resources.num_nodes,
        losses=hazard.losses,
        hours=hazard.hours,
        prior_h=hazard.prior_h,
        starts=not _trains(facts),
    )


def _left_s(facts: JobRecord, pace: StepTimes, step: int, node: Node) -> float:
    """Return the remaining training time at the job's measured pace, at least one step."""
    if facts.preferences.work_steps:
        return max(facts.preferences.work_steps - step, 1) * pace.step_s
    speed = speed_of(facts.job.spec, node.offer)
    return max(facts.preferences.work_s / speed - step * pace.step_s, pace.step_s)


def _rates(facts: JobRecord) -> list[float]:
    """Return hourly rates of all machines together at moments of the last days.

    The present rate counts for half if there is one.
    """
    started_us = min((segment.start_us for segment in facts.stretches), default=facts.now_us)
    since_us = max(started_us, facts.now_us - HISTORY_US)
    each_us = (facts.now_us - since_us) / SAMPLES
    moments = [since_us + round((n + 0.5) * each_us) for n in range(SAMPLES)]
    rates = [
        sum(
            segment.rate_microusd_per_h
            for segment in facts.stretches
            if segment.start_us <= at_us < segment.end_us
        )
        for at_us in moments
    ]
    hourly_rates: list[float] = [rate for rate in rates if rate]
    now = sum(segment.rate_microusd_per_h for segment in facts.stretches if segment.running)
    if now:
        hourly_rates += [now] * max(1, len(hourly_rates))
    return hourly_rates or [0.0]  # prepaid


def _mean(facts: JobRecord) -> int:
    started_us = min((segment.start_us for segment in facts.stretches), default=facts.now_us)
    since_us = max(started_us, facts.now_us - DAY_US)
    passed_us = facts.now_us - since_us
    spent = sum(segment.spent(since_us, facts.now_us) for segment in facts.stretches)
    return round(spent * US_PER_H / passed_us) if passed_us > 0 else 0


def _on_demand(facts: JobRecord) -> tuple[int, int]:
    """Return the on-demand price of a machine like the newest, there and in the cheapest place.

    0 if no price is known.
    """
    newest = max(facts.stretches, key=lambda segment: segment.start_us, default=None)
    if newest is None:
        return 0, 0
    return newest.list_rate_microusd_per_h, newest.best_rate_microusd_per_h


def _trains(facts: JobRecord) -> bool:
    return any(
        node.state is NodeState.RUNNING and node.training.first_step_at_us and node.chosen
        for node in facts.nodes
    )


def _reported(facts: JobRecord) -> int:
    """Return the last step of the machine that trains; 0 if none does."""
    if not _trains(facts):
        return 0
    own_steps = [row for row in facts.steps if row.generation == facts.job.generation]
    return own_steps[-1].last if own_steps else 0


def _newest(nodes: Sequence[Node]) -> Node | None:
    chosen = [node for node in nodes if node.chosen or node.startup.started_at_us] or list(nodes)
    return max(chosen, key=lambda node: node.requested_at_us, default=None)


def _notes(known: Measurements, own_losses: int) -> tuple[str, ...]:
    """Return where the interval comes from, term by term."""
    mean_min = sum(known.losses_s) / len(known.losses_s) / 60
    took = f"{own_losses} of this job, and" if own_losses else "none of this job yet:"
    often = f"{known.losses} in {known.hours:,.0f} machine-hours of this pool here"
    notes = [
        f"pace: {len(known.paces)} stretches of its own training",
        f"interruptions: {often}, and one in {known.prior_h:,.0f} h believed",
        f"each {mean_min:.1f} min: {took} {known.losses_s[-1] / 60:.1f} min as planned",
        "prices: as now, or those that it paid in the last 7 days",
    ]
    if known.starts:
        notes.append("it does not train now: counted from when it has a machine")
    return tuple(notes)
