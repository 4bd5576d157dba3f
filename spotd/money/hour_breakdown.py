"""Divide each billed hour of a machine by its use.

The billed time is split at recorded events: when the machine was ready, when it claimed HEAD, when
its steps were made. Each microsecond has exactly one use, so that the uses add up to the billed
time. Time without a record is `UNTOLD` and never counts as useful.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from spotd.domain.lost_work import LostWork, TrainedAttempt
from spotd.domain.units import S
from spotd.money.units import cost_microusd, share_out


class TimeUse(str, Enum):
    """A use of billed time."""

    USEFUL = "useful"  # steps that survive in the final lineage
    REPLAYED = "replayed"  # steps that were lost, and trained again
    CHECKPOINT = "checkpoint"  # training stopped for a save, or the machine finished its last one
    STARTUP = "startup"  # until the first step: boot, set-up, restore; and machines never chosen
    IDLE = "idle"  # anything else: evaluation, a hang, the time to its end
    WAITING = "waiting"  # ready, waiting for the machine that it replaces, or for its gang
    UNTOLD = "untold"  # it ran, but its program reported no steps


@dataclass(frozen=True)
class Segment:
    """A segment of the ledger: one machine at one price. `end_us` is now while it runs.

    `list_rate_microusd_per_h` is the on-demand price of the same machine in the same place, and
    `best_rate_microusd_per_h` that of the cheapest place with such a machine. `prepaid` hours come
    from a reservation.
    """

    start_us: int
    end_us: int
    rate_microusd_per_h: int
    list_rate_microusd_per_h: int = 0
    best_rate_microusd_per_h: int = 0
    price_source: str = "quote"
    running: bool = False
    prepaid: bool = False
    reconciled: bool = False
    invoiced_microusd: int = 0  # where it is reconciled

    def spent(self, since_us: int, until_us: int) -> int:
        """Return its cost in that time in micro-USD. Adjacent parts of a segment add up exactly."""
        if self.reconciled:
            return self._part(self.invoiced_microusd, since_us, until_us)
        return self.at_rate(self.rate_microusd_per_h, since_us, until_us)

    def at_rate(self, rate_microusd_per_h: int, since_us: int, until_us: int) -> int:
        """Return its cost in that time at another price."""
        start_us, end_us = self.within(since_us, until_us)
        before = cost_microusd(rate_microusd_per_h, self.start_us, start_us)
        return cost_microusd(rate_microusd_per_h, self.start_us, end_us) - before

    def within(self, since_us: int, until_us: int) -> tuple[int, int]:
        """Return its part of that time, which may be empty."""
        start_us = min(max(self.start_us, since_us), max(self.end_us, self.start_us))
        return start_us, max(min(self.end_us, until_us), start_us)

    def _part(self, total: int, since_us: int, until_us: int) -> int:
        length_us = self.end_us - self.start_us
        start_us, end_us = self.within(since_us, until_us)
        if not length_us:
            return total if since_us <= self.start_us < until_us else 0
        before = total * (start_us - self.start_us) // length_us
        return total * (end_us - self.start_us) // length_us - before


@dataclass(frozen=True)
class Steps:
    """One report of steps `first` to `last`, both included.

    Made from `first_at_us` to `last_at_us` of the machine's clock, received `at_us` on ours,
    `busy_us` of it within steps (0 if not reported).
    """

    generation: int
    first: int
    last: int
    first_at_us: int
    last_at_us: int
    busy_us: int
    at_us: int


@dataclass(frozen=True)
class Save:
    """A checkpoint: training stopped for at most `stage_us`; it was stored `write_us` later."""

    generation: int
    step: int
    stage_us: int
    write_us: int = 0


@dataclass(frozen=True)
class Machine:
    """One rented machine of a job, with the time of each stage (0 if never, or not recorded)."""

    node_id: str
    generation: int
    stretches: tuple[Segment, ...]
    gpus: int = 0
    rank: int = 0
    chosen: bool = True  # it got the order to start
    hedge_lost: bool = False  # requested in parallel with others, and another one was chosen
    ready_at_us: int = 0
    claimed_at_us: int = 0
    ended_at_us: int = 0  # its program released HEAD, or exited
    details: Mapping[str, str] = field(default_factory=dict)  # for exports: where, which type, ...


Span = tuple[int, int, TimeUse]  # from, to, what


def trained(steps: Sequence[Steps], saves: Sequence[Save]) -> dict[int, list[Span]]:
    """Return when each generation trained, by our clock, in order and without overlap.

    How far a machine's clock is behind ours follows from the report received soonest. A step that a
    newer run made again is replayed, whoever made it first. Time between two reports outside of
    steps is a checkpoint as far as saves of these steps can explain it, and idle beyond that.
    """
    runs, stalls = _runs(steps), _SaveStalls(saves)
    spans_by_generation: dict[int, list[Span]] = {}
    behind: dict[int, int] = {}
    for row in steps:
        late_us = row.at_us - row.last_at_us
        behind[row.generation] = min(late_us, behind.get(row.generation, late_us))
    floors: list[int | None] = [None] * len(runs)
    floor: int | None = None
    for number in range(len(runs) - 1, -1, -1):
        floors[number] = floor
        first = runs[number][0].first
        floor = first if floor is None else min(floor, first)
    for rows, surviving_before in zip(runs, floors, strict=True):
        generation = rows[0].generation
        behind_us = behind[generation]
        spans = spans_by_generation.setdefault(generation, [])
        end_us: int | None = None
        for row in rows:
            to_us = row.last_at_us + behind_us
            if end_us is None:
                length_us = max(row.busy_us, row.last_at_us - row.first_at_us)
                end_us = max(to_us - length_us, spans[-1][1] if spans else 0)
            stall_us = stalls.of(generation, row.first - 1, row.last)
            spans += _report(row, end_us, max(to_us, end_us), stall_us, surviving_before)
            end_us = max(to_us, end_us)
    return spans_by_generation


def _report(
    row: Steps, start_us: int, end_us: int, stall_us: int, surviving_before: int | None
) -> list[Span]:
    """Cut one report by length: what survives, what was lost, what saves took, the rest."""
    length_us = end_us - start_us
    busy_us = min(row.busy_us, length_us) if row.busy_us else max(length_us - stall_us, 0)
    save_us = min(length_us - busy_us, stall_us)
    last = row.last if surviving_before is None else min(row.last, surviving_before - 1)
    surviving = max(0, last - row.first + 1)
    useful_us = busy_us * surviving // max(1, row.last - row.first + 1)
    idle_us = length_us - busy_us - save_us
    lengths = (
        (useful_us, TimeUse.USEFUL),
        (busy_us - useful_us, TimeUse.REPLAYED),
        (save_us, TimeUse.CHECKPOINT),
        (idle_us, TimeUse.IDLE),
    )
    spans: list[Span] = []
    for took_us, use in lengths:
        if took_us:
            spans.append((start_us, start_us + took_us, use))
            start_us += took_us
    return spans


class _SaveStalls:
    """How long training may have stopped for saves, by generation and step."""

    def __init__(self, saves: Sequence[Save]) -> None:
        self._steps: dict[int, list[int]] = {}
        self._sums: dict[int, list[int]] = {}  # one more: of all before that step
        for save in sorted(saves, key=lambda save: save.step):
            self._steps.setdefault(save.generation, []).append(save.step)
            sums = self._sums.setdefault(save.generation, [0])
            sums.append(sums[-1] + save.stage_us)

    def of(self, generation: int, first: int, end: int) -> int:
        """Return the stalls of saves at steps from `first` on and before `end`."""
        steps, sums = self._steps.get(generation, []), self._sums.get(generation, [0])
        return sums[bisect_left(steps, max(first, end))] - sums[bisect_left(steps, first)]


def _runs(steps: Sequence[Steps]) -> list[list[Steps]]:
    """Group reports into runs: a step back, or a new generation, starts another run."""
    runs: list[list[Steps]] = []
    for row in sorted(steps, key=lambda row: row.generation):  # stable: as they were recorded
        last = runs[-1][-1] if runs else None
        if last is None or last.generation != row.generation or row.first <= last.last:
            runs.append([])
        runs[-1].append(row)
    return runs


def timeline(
    machine: Machine, spans: Sequence[Span], saves: Sequence[Save], *, steps_reported: bool
) -> list[Span]:
    """Return the machine's life from start to end, split by use.

    `spans` are those of its generation. `steps_reported`: some machine of the job reported steps.
    """
    if not machine.chosen:
        return [(0, END_US, TimeUse.STARTUP)]
    transitions: list[tuple[int, TimeUse]] = [(0, TimeUse.STARTUP)]
    if machine.ready_at_us:
        transitions.append((machine.ready_at_us, TimeUse.WAITING))
    if machine.claimed_at_us:
        transitions.append(
            (machine.claimed_at_us, TimeUse.STARTUP if steps_reported else TimeUse.UNTOLD)
        )
    for start_us, end_us, use in spans:
        transitions += [(start_us, use), (end_us, TimeUse.IDLE)]
    if spans:
        last_us = spans[-1][1]
        until_us = min(machine.ended_at_us or last_us, last_us + _last_save_us(machine, saves))
        transitions += [(last_us, TimeUse.CHECKPOINT), (until_us, TimeUse.IDLE)]
    elif machine.ended_at_us:
        transitions.append((machine.ended_at_us, TimeUse.IDLE))
    return _joined(transitions)


END_US = 1 << 62  # later than anything


def _last_save_us(machine: Machine, saves: Sequence[Save]) -> int:
    """Return how long the newest save of its generation took in all."""
    own_saves = [save for save in saves if save.generation == machine.generation]
    newest = max(own_saves, key=lambda save: save.step, default=None)
    return newest.stage_us + newest.write_us if newest else 0


def _joined(transitions: Sequence[tuple[int, TimeUse]]) -> list[Span]:
    """Return each use from its mark to the next; a mark before its predecessor replaces it."""
    spans: list[Span] = []
    at_us, current = transitions[0]
    for transition_us, use in transitions[1:]:
        start_us = max(transition_us, at_us)
        if start_us > at_us:
            spans.append((at_us, start_us, current))
        at_us, current = start_us, use
    return [*spans, (at_us, END_US, current)]


def split_segment(
    segment: Segment, spans: Sequence[Span], since_us: int, until_us: int
) -> tuple[dict[TimeUse, int], dict[TimeUse, int]]:
    """Return the microseconds and micro-USD by use, of the segment's part of that time.

    Both add up exactly to those of that part.
    """
    start_us, end_us = segment.within(since_us, until_us)
    times: dict[TimeUse, int] = {}
    for at in range(bisect_right(spans, start_us, key=lambda span: span[1]), len(spans)):
        from_us, to_us, use = spans[at]
        if from_us >= end_us:
            break
        inside_us = min(to_us, end_us) - max(from_us, start_us)
        if inside_us > 0:
            times[use] = times.get(use, 0) + inside_us
    spent = segment.spent(since_us, until_us)
    if not times:
        return {}, {TimeUse.UNTOLD: spent} if spent else {}
    parts = share_out(spent, list(times.values()))
    return times, dict(zip(times, parts, strict=True))


def script_spans(
    attempts: Sequence[TrainedAttempt],
    lost: Mapping[int, LostWork],
    *,
    saved_at_us: int,
    succeeded: bool,
) -> dict[int, list[Span]]:
    """Return the uses of each attempt's running time, by generation.

    `lost` is what each later attempt lacked, by its generation; it is replayed. The rest of what
    was there is useful. Of the newest attempt that is the time to its newest save, at
    `saved_at_us`, and all of it once the job has succeeded; the rest is not known.
    """
    spans: dict[int, list[Span]] = {}
    for number, attempt in enumerate(attempts):
        end_us = max(attempt.ended_us, attempt.began_us)
        if number + 1 < len(attempts):
            loss = lost[attempts[number + 1].generation]
            lost_us = round((loss.seconds or 0.0) * S)
            kept_us = attempt.began_us if loss.anew else max(attempt.began_us, end_us - lost_us)
            rest = TimeUse.REPLAYED
            if loss.anew:  # so is all that was kept before
                spans = {
                    generation: [(start, end, TimeUse.REPLAYED) for start, end, _ in earlier]
                    for generation, earlier in spans.items()
                }
        else:
            saved_us = min(max(saved_at_us, attempt.began_us), end_us)
            kept_us, rest = (end_us if succeeded else saved_us), TimeUse.UNTOLD
        parts = (
            (attempt.began_us, kept_us, TimeUse.USEFUL),
            (kept_us, end_us, rest),
        )
        spans[attempt.generation] = [part for part in parts if part[1] > part[0]]
    return {generation: parts for generation, parts in spans.items() if parts}
