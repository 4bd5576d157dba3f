"""Thin a job's reports of loss and speed to as many points as a picture can show.

A stretch of steps keeps its lowest and its highest loss, so that a spike is never hidden. Speed is
that of the stretch: its steps by the time spent on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepReport:
    """The steps from `first` to `last` of a generation; `losses` has one a step, or is thinned."""

    generation: int
    first: int
    last: int
    losses: Sequence[float]
    tokens: int
    busy_s: float


@dataclass(frozen=True)
class AttemptCurves:
    """Loss, steps per second and tokens per second of one generation, as (step, value)."""

    generation: int
    loss: list[tuple[int, float]] = field(default_factory=list)
    steps_per_s: list[tuple[int, float]] = field(default_factory=list)
    tokens_per_s: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class _Bucket:
    """Everything that falls into one stretch of steps."""

    last: int = 0
    steps: int = 0
    tokens: int = 0
    busy_s: float = 0.0
    low: tuple[int, float] | None = None
    high: tuple[int, float] | None = None
    no_number: tuple[int, float] | None = None

    def add_loss(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            self.no_number = self.no_number or (step, loss)  # a gap in the curve
            return
        if self.low is None or loss < self.low[1]:
            self.low = (step, loss)
        if self.high is None or loss > self.high[1]:
            self.high = (step, loss)


def curves_of(reports: Sequence[StepReport], most: int) -> list[AttemptCurves]:
    """Return the curves of each generation, each with about `most` points for the whole job."""
    if not reports:
        return []
    low, high = min(row.first for row in reports), max(row.last for row in reports)
    width = max(1, -(-(high - low + 1) * 2 // most))
    buckets: dict[int, dict[int, _Bucket]] = {}
    for row in reports:
        own = buckets.setdefault(row.generation, {})
        bucket = own.setdefault((row.first - low) // width, _Bucket())
        bucket.last = max(bucket.last, row.last)
        bucket.steps += row.last - row.first + 1
        bucket.tokens += row.tokens
        bucket.busy_s += row.busy_s
        for step, loss in _losses(row):
            own.setdefault((step - low) // width, _Bucket()).add_loss(step, loss)
    return [_curves(generation, own) for generation, own in sorted(buckets.items())]


def _losses(row: StepReport) -> Iterable[tuple[int, float]]:
    """Yield the losses by step; those that were thinned are spread over the report's steps."""
    span = row.last - row.first + 1
    for at, loss in enumerate(row.losses):
        yield row.first + at * span // len(row.losses), loss


def _curves(generation: int, buckets: dict[int, _Bucket]) -> AttemptCurves:
    curves = AttemptCurves(generation)
    for _, bucket in sorted(buckets.items()):
        points = (bucket.low, bucket.high, bucket.no_number)
        curves.loss.extend(sorted({point for point in points if point is not None}))
        if bucket.busy_s > 0:
            curves.steps_per_s.append((bucket.last, bucket.steps / bucket.busy_s))
            if bucket.tokens:
                curves.tokens_per_s.append((bucket.last, bucket.tokens / bucket.busy_s))
    return curves
