"""What is known of how a job goes on: its burn rate, the steps that are left, when it will be done
and what it will have cost then. By its own record: its reports of steps, its interruptions, and the
prices that it paid; and by this fleet's record of such machines, for how often they are taken away.
Where the record or the job file does not tell, nothing is foretold, and why is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from spotd.decide.carriage import longest_pause_s
from spotd.decide.remaining import GENERATIONS, start_s
from spotd.decide.situating import speed_of
from spotd.decide.worth import lives_of
from spotd.history.completion import Completion, Known, completion
from spotd.history.worth import hazard_of
from spotd.model import Desired, Job, Market, Node, S
from spotd.money.split import Steps, Stretch
from spotd.money.units import US_PER_H
from spotd.past import LOSSES
from spotd.phase import keeps
from spotd.states import NodeState

DAY_US = 24 * US_PER_H
HISTORY_US = 7 * DAY_US  # of which the rates are
SAMPLES = 48  # moments of that time at which they are read
CUT_S = 600.0  # of training at least, in one stretch whose pace is compared with others'

ENDED = "it has ended"
PAUSED = "it is paused"
NO_AMOUNT = "the job file does not say how much there is to do"
NO_STEPS = "no steps of it were measured yet"
ANEW = "it keeps no checkpoints: each interruption begins it anew"
NEVER = "its interruptions take as much time as there is between them"
AMOUNT_ADVICE = "write spotd.work: 100000 steps, or 40h"


@dataclass(frozen=True)
class Facts:
    """What is on record of one job: all its machines with their stretches, and its reports."""

    job: Job
    nodes: Sequence[Node]
    stretches: Sequence[Stretch]
    steps: Sequence[Steps]
    market: Market
    now_us: int


@dataclass(frozen=True)
class Pace:
    """Of the newest generations: seconds a step in all of their training, and in its stretches."""

    step_s: float
    steps: int  # that were measured
    stretches: Sequence[float]


@dataclass(frozen=True)
class Outlook:
    """Money is of machines alone. `unknown`: why no end is foretold, and then `completion` is None;
    `step` is the last one made, `saved_step` the one to which a sudden end goes back. What is left
    would cost `list_left_microusd` on demand in the same place, without any interruption, and
    `best_left_microusd` in the cheapest; 0 where no price is known."""

    spent_microusd: int
    microusd_per_h: int
    mean_microusd_per_h: int  # of the last 24 h, or since it began
    step: int = 0
    saved_step: int = 0
    steps: int = 0  # all that there are to do; 0: not said
    pace: Pace | None = None
    left_s: float = 0.0
    known: Known | None = None
    own_losses: int = 0  # interruptions of its own that were measured
    completion: Completion | None = None
    unknown: str = ""
    advice: str = ""
    list_left_microusd: int = 0
    best_left_microusd: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def final_microusd(self) -> tuple[int, int, int] | None:
        """What its machines will have cost at its end: low, middle, high."""
        if self.completion is None:
            return None
        cost = self.completion.cost
        low, middle, high = (round(value) for value in (cost.low, cost.middle, cost.high))
        return self.spent_microusd + low, self.spent_microusd + middle, self.spent_microusd + high


def outlook(facts: Facts) -> Outlook:
    """At `now_us`, of a job in any state."""
    job, wishes, now_us = facts.job, facts.job.spec.wishes, facts.now_us
    rate = sum(one.rate_microusd_per_h for one in facts.stretches if one.running)
    spent = sum(one.spent(0, now_us) for one in facts.stretches)
    pace, saved = pace_of(facts.steps), job.head.step if job.head else 0
    step = max(saved, _reported(facts))
    unknown, advice = _obstacle(facts, pace)
    shown = Outlook(
        spent,
        rate,
        _mean(facts),
        step,
        saved,
        wishes.work_steps,
        pace,
        unknown=unknown,
        advice=advice,
    )
    here = _newest(facts.nodes)
    if unknown or pace is None or here is None:
        return shown
    left_s = _left_s(facts, pace, step, here)
    own = losses_s(facts)
    known = _known(facts, pace, left_s, own, here)
    found = completion(known)
    list_rate, best_rate = _on_demand(facts)
    left_h, nodes = left_s / 3600, job.spec.num_nodes
    return Outlook(
        *(spent, rate, shown.mean_microusd_per_h, step, saved, wishes.work_steps, pace, left_s),
        known=known,
        own_losses=len(own),
        completion=found,
        unknown="" if found else NEVER,
        list_left_microusd=round(list_rate * nodes * left_h),
        best_left_microusd=round(best_rate * nodes * left_h),
        notes=_notes(known, len(own)),
    )


def _obstacle(facts: Facts, pace: Pace | None) -> tuple[str, str]:
    """Why no end can be foretold, and what would help."""
    job = facts.job
    if job.outcome is not None:
        return ENDED, ""
    if job.desired is not Desired.RUN:
        return PAUSED, f"spotctl resume {job.name}"
    if not job.spec.wishes.measurable:
        return NO_AMOUNT, AMOUNT_ADVICE
    if not keeps(job.spec.checkpoint):
        return ANEW, "checkpoint: {engine: spotd}"
    return (NO_STEPS, "") if pace is None else ("", "")


def pace_of(steps: Sequence[Steps]) -> Pace | None:
    """By wall time, stalls for saves and evaluation included: from report to report of one run, and
    of the first report what it says itself. None where nothing was measured."""
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
    whole_s, many = sum(time_s for time_s, _ in cuts), sum(count for _, count in cuts)
    if not whole_s or not many:
        return None
    full = [cut for cut in cuts if cut[0] >= CUT_S / 2] or cuts
    return Pace(whole_s / many, many, [time_s / count for time_s, count in full])


def _neighbours(rows: Sequence[Steps]) -> Iterator[tuple[Steps | None, Steps]]:
    """Each with the one before, of the same run: where it goes back, another one begins."""
    before: Steps | None = None
    for row in rows:
        follows = before is not None and row.first > before.last
        yield (before if follows else None), row
        before = row


def losses_s(facts: Facts) -> list[float]:
    """What each interruption took that is over: from the last step before it until training was
    that far again and made a new one. Of machines that were taken away or lost alone."""
    taken = {
        node.generation
        for node in facts.nodes
        if node.leave_reason in LOSSES and (node.chosen or node.started_at_us)
    }
    behind = _behind(facts.steps)
    rows = sorted(facts.steps, key=lambda row: row.generation)
    found = []
    for old, new in pairwise(rows):
        if old.generation == new.generation or old.generation not in taken:
            continue
        ended_us = old.last_at_us + behind[old.generation]
        again_us = _reached_us(rows, old, behind)
        if again_us:
            found.append(max(0, again_us - ended_us) / S)
    return found


def _behind(steps: Iterable[Steps]) -> dict[int, int]:
    """How far each generation's clock is behind ours: as told by what was heard soonest."""
    found: dict[int, int] = {}
    for row in steps:
        late_us = row.at_us - row.last_at_us
        found[row.generation] = min(late_us, found.get(row.generation, late_us))
    return found


def _reached_us(rows: Sequence[Steps], old: Steps, behind: dict[int, int]) -> int:
    """When the step after `old`'s last was made, by our clock; 0: not yet."""
    wanted = old.last + 1
    for row in rows:
        if row.generation > old.generation and row.last >= wanted:
            each_us = (row.last_at_us - row.first_at_us) / max(1, row.last - row.first)
            after = row.last - max(wanted, row.first)
            return round(row.last_at_us - after * each_us) + behind[row.generation]
    return 0


def _known(facts: Facts, pace: Pace, left_s: float, own: Sequence[float], here: Node) -> Known:
    spec, past = facts.job.spec, facts.market.past
    planned = start_s(past, facts.job.id) + longest_pause_s(here.offer, spec, facts.market) / 2
    hazard = hazard_of(here.offer, lives_of(past))
    return Known(
        left_s,
        [one / pace.step_s for one in pace.stretches],
        [*own, planned],
        _rates(facts),
        spec.num_nodes,
        *(hazard.losses, hazard.hours, hazard.prior_h),
        starts=not _trains(facts),
    )


def _left_s(facts: Facts, pace: Pace, step: int, here: Node) -> float:
    """Of training where the job is, at the pace that was measured; a step at least, for what is
    finished ends by itself."""
    wishes = facts.job.spec.wishes
    if wishes.work_steps:
        return max(wishes.work_steps - step, 1) * pace.step_s
    speed = speed_of(facts.job.spec, here.offer)
    return max(wishes.work_s / speed - step * pace.step_s, pace.step_s)


def _rates(facts: Facts) -> list[float]:
    """Of all machines together, at moments of the last days at which there were any; the present
    rate, where there is one, counts for half of it."""
    begun_us = min((one.start_us for one in facts.stretches), default=facts.now_us)
    since_us = max(begun_us, facts.now_us - HISTORY_US)
    each_us = (facts.now_us - since_us) / SAMPLES
    moments = [since_us + round((n + 0.5) * each_us) for n in range(SAMPLES)]
    rates = [
        sum(s.rate_microusd_per_h for s in facts.stretches if s.start_us <= at_us < s.end_us)
        for at_us in moments
    ]
    found: list[float] = [rate for rate in rates if rate]
    now = sum(one.rate_microusd_per_h for one in facts.stretches if one.running)
    if now:
        found += [now] * max(1, len(found))
    return found or [0.0]  # prepaid


def _mean(facts: Facts) -> int:
    begun_us = min((one.start_us for one in facts.stretches), default=facts.now_us)
    since_us = max(begun_us, facts.now_us - DAY_US)
    passed_us = facts.now_us - since_us
    spent = sum(one.spent(since_us, facts.now_us) for one in facts.stretches)
    return round(spent * US_PER_H / passed_us) if passed_us > 0 else 0


def _on_demand(facts: Facts) -> tuple[int, int]:
    """What an hour of a machine like the newest costs on demand, there and in the cheapest place;
    0 where no price is known."""
    newest = max(facts.stretches, key=lambda one: one.start_us, default=None)
    if newest is None:
        return 0, 0
    return newest.list_rate_microusd_per_h, newest.best_rate_microusd_per_h


def _trains(facts: Facts) -> bool:
    return any(
        node.state is NodeState.RUNNING and node.first_step_at_us and node.chosen
        for node in facts.nodes
    )


def _reported(facts: Facts) -> int:
    """The last step of the machine that trains; 0 where none does."""
    if not _trains(facts):
        return 0
    mine = [row for row in facts.steps if row.generation == facts.job.generation]
    return mine[-1].last if mine else 0


def _newest(nodes: Sequence[Node]) -> Node | None:
    chosen = [node for node in nodes if node.chosen or node.started_at_us] or list(nodes)
    return max(chosen, key=lambda node: node.requested_at_us, default=None)


def _notes(known: Known, own: int) -> tuple[str, ...]:
    """Where the interval comes from, term by term."""
    mean_min = sum(known.losses_s) / len(known.losses_s) / 60
    took = f"{own} of this job, and" if own else "none of this job yet:"
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
