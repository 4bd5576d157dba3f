"""Compute the work that is lost when a job continues in another attempt: steps, time and money."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from providers.dollars import format_microusd
from spotd.domain.node import Node
from spotd.domain.units import US_PER_H, S, format_seconds
from spotd.wire import EXIT_UNFIT
from spotd.wire.printed_steps import PrintedSteps, is_unknown, main_series

LEAST_S = 1.0  # of a script's time: between its last save and its end is always a moment
# Exit codes that are not the program's own failure.


@dataclass(frozen=True)
class TrainedAttempt:
    """The training of one attempt, on the machine of rank 0; times in microseconds.

    `began_us` is its first step, or the start of its script. `ended_us` is its release, otherwise
    its last message. `resumed_step` is the step of the checkpoint that it resumed from; None: not
    on record. `microusd_per_h` is the price of all machines of the attempt. `failed`: its program
    failed by itself. `anew`: its program was observed to ignore its checkpoint.
    """

    generation: int
    began_us: int
    ended_us: int
    last_step: int
    resumed_step: int | None
    microusd_per_h: int
    failed: bool = False
    anew: bool = False
    gave_back: bool = False  # it ended by itself: no step is unreported
    printed: PrintedSteps = field(default_factory=dict)  # by a program that reports no steps


def trained_attempts(nodes: Iterable[Node], num_nodes: int) -> list[TrainedAttempt]:
    """Return the attempts that trained, oldest first, by their machines of rank 0.

    `num_nodes` is that of the job, for attempts without a size of their own.
    """
    leaders: dict[int, Node] = {}
    for node in sorted(nodes, key=lambda node: node.training.first_step_at_us):
        if node.training.first_step_at_us and node.rank == 0:
            leaders[node.generation] = node
    return [_attempt_of(leaders[number], num_nodes) for number in sorted(leaders)]


def _attempt_of(node: Node, num_nodes: int) -> TrainedAttempt:
    training = node.training
    return TrainedAttempt(
        generation=node.generation,
        began_us=training.first_step_at_us,
        ended_us=training.released_at_us or training.exited_at_us or node.agent.heard_at_us,
        last_step=training.last_step,
        resumed_step=training.resumed_step,
        microusd_per_h=node.offer.price_microusd_per_h * (node.gang_size or num_nodes),
        failed=node.program_failed and training.exit_code != EXIT_UNFIT,
        anew=bool(training.anew_at_us),
        gave_back=bool(training.released_at_us or training.exited_at_us),
        printed=training.printed_steps,
    )


@dataclass(frozen=True)
class HandOver:
    """The attempt before, and when the newest checkpoint was saved that the next one can use.

    `saved_at_us` is 0 if there is none. `kept_s` is the time of the work from which the old attempt
    itself resumed. `reports_steps`: the program saves with spotd's engine, and reports each step.
    """

    old: TrainedAttempt
    saved_at_us: int
    reports_steps: bool
    kept_s: float = 0.0

    @property
    def work_s(self) -> float:
        """The time of all work that was there when the old attempt ended."""
        return self.kept_s + max(0, self.old.ended_us - self.old.began_us) / S


@dataclass(frozen=True)
class LostWork:
    """Work that has to be done again. None: not known.

    `anew`: no earlier work was kept, so the program starts from the beginning.
    """

    steps: int | None
    seconds: float | None
    microusd: int | None
    anew: bool


def lost_work(
    hand_over: HandOver,
    resumed_step: int | None,
    *,
    anew: bool = False,
    printed: PrintedSteps | None = None,
) -> LostWork:
    """Return the work of the old attempt that the new one, resumed at `resumed_step`, lacks.

    A program that reports steps loses those after the checkpoint; their time is that of the old
    attempt's steps on average, saves and pauses included. A script loses the time from its newest
    save, or from its start, to its end. spotd does not know of saves elsewhere, unless both
    attempts print the numbers of their steps: `printed` are the new one's. `anew`: the program was
    observed to ignore that save; then it loses all work. If the printed steps may be a repeated
    history, any part may be lost: not known.
    """
    old = hand_over.old
    repeated_s = None if anew or hand_over.saved_at_us else _repeated_s(hand_over, printed or {})
    if (
        not hand_over.saved_at_us
        and not anew
        and is_unknown(main_series(old.printed), printed or {})
    ):
        return LostWork(None, None, None, anew=False)
    if not hand_over.reports_steps and repeated_s is not None:
        return _priced(old, None, repeated_s, anew=False)
    if not hand_over.reports_steps and (anew or not hand_over.saved_at_us):
        return _priced(old, None, hand_over.work_s, anew=True)
    if not hand_over.reports_steps:
        from_us = max(old.began_us, hand_over.saved_at_us)
        seconds = max(0.0, (old.ended_us - from_us) / S)
        return _priced(old, None, seconds, anew=False)
    if resumed_step is None:
        return LostWork(None, None, None, anew=False)
    steps = max(0, old.last_step - resumed_step)
    made = old.last_step - (old.resumed_step or 0)
    took_s = max(0, old.ended_us - old.began_us) / S
    seconds = steps * took_s / made if made > 0 else 0.0
    return _priced(old, steps, seconds, anew=bool(steps) and not resumed_step)


def _repeated_s(hand_over: HandOver, printed: PrintedSteps) -> float | None:
    """Return the time of the old attempt's printed steps that the new one repeats."""
    old = hand_over.old
    key = main_series(old.printed)
    if not key or key not in printed:
        return None
    before, first = old.printed[key], printed[key].first
    every = (before.last - before.first) / max(1, before.count - 1)  # steps between two numbers
    share = (before.last + every - first) / (before.last + every - before.first)
    took_s = max(0, old.ended_us - old.began_us) / S
    return min(hand_over.work_s, max(0.0, share * took_s))


def _priced(old: TrainedAttempt, steps: int | None, seconds: float, *, anew: bool) -> LostWork:
    return LostWork(steps, seconds, round(seconds * S * old.microusd_per_h / US_PER_H), anew)


def describe_lost_work(lost: LostWork) -> str:
    """Describe the lost steps, time and dollars in one clause."""
    if lost.seconds is None:
        return "what it lost is not known"
    if not lost.steps and lost.seconds < LEAST_S:
        return "no work is lost"
    steps = "" if lost.steps is None else f"{lost.steps:,} step{'s'[: lost.steps != 1]}, "
    usd = "" if lost.microusd is None else f" ({format_microusd(lost.microusd)})"
    work = f"{steps}{format_seconds(lost.seconds)} of work{usd}"
    return f"it starts from the beginning: {work} is lost" if lost.anew else f"lost: {work}"
