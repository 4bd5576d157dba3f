"""Thin a job's reports of loss and speed to as many points as a picture can show.

A stretch of steps keeps its lowest and its highest loss, so that a spike is never hidden. Speed is
that of the stretch: its steps by the time spent on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_Points = list[tuple[int, float]]


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
    begin: tuple[int, float] | None = None
    end: tuple[int, float] | None = None

    def add_loss(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            self.no_number = self.no_number or (step, loss)  # a gap in the curve
            return
        if self.low is None or loss < self.low[1]:
            self.low = (step, loss)
        if self.high is None or loss > self.high[1]:
            self.high = (step, loss)
        if self.begin is None or step < self.begin[0]:
            self.begin = (step, loss)
        if self.end is None or step >= self.end[0]:
            self.end = (step, loss)


def curves_of(reports: Sequence[StepReport], most: int) -> list[AttemptCurves]:
    """Return the curves of each generation, each with at most `most` points for the whole job.

    A generation keeps its first and its last point as long as there is room for those of all.
    """
    if not reports:
        return []
    low, high = min(row.first for row in reports), max(row.last for row in reports)
    width = max(1, -(-(high - low + 1) * 2 // most))
    while True:
        buckets = _buckets(reports, low, width)
        curves = [_curves(generation, own) for generation, own in sorted(buckets.items())]
        if _points(curves) <= most or width > high - low:
            return _bounded(curves, most)
        width *= 2  # many generations trained the same steps


def _buckets(reports: Sequence[StepReport], low: int, width: int) -> dict[int, dict[int, _Bucket]]:
    """Return what was reported by generation and stretch of `width` steps."""
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
    return buckets


def _losses(row: StepReport) -> Iterable[tuple[int, float]]:
    """Yield the losses by step; those that were thinned are spread over the report's steps."""
    span = row.last - row.first + 1
    for at, loss in enumerate(row.losses):
        yield row.first + at * span // len(row.losses), loss


def _curves(generation: int, buckets: dict[int, _Bucket]) -> AttemptCurves:
    curves = AttemptCurves(generation)
    with_loss = [number for number, bucket in buckets.items() if bucket.begin is not None]
    first, last = min(with_loss, default=None), max(with_loss, default=None)
    for number, bucket in sorted(buckets.items()):
        points = {bucket.low, bucket.high, bucket.no_number}
        points |= {bucket.begin} if number == first else set()
        points |= {bucket.end} if number == last else set()
        curves.loss.extend(sorted(point for point in points if point is not None))
        if bucket.busy_s > 0:
            curves.steps_per_s.append((bucket.last, bucket.steps / bucket.busy_s))
            if bucket.tokens:
                curves.tokens_per_s.append((bucket.last, bucket.tokens / bucket.busy_s))
    return curves


def _points(curves: Sequence[AttemptCurves]) -> int:
    """Return the number of points of the longest of the three curves, over all generations."""
    return max(sum(map(len, of_all)) for of_all in _each(curves))


def _each(curves: Sequence[AttemptCurves]) -> list[list[_Points]]:
    """Return each of the three curves as the points of all generations."""
    return [
        [curve.loss for curve in curves],
        [curve.steps_per_s for curve in curves],
        [curve.tokens_per_s for curve in curves],
    ]


def _bounded(curves: Sequence[AttemptCurves], most: int) -> list[AttemptCurves]:
    """Return the curves with at most `most` points each: of each generation both ends, or fewer."""
    loss, steps, tokens = (_thinned(of_all, most) for of_all in _each(curves))
    rows = zip(curves, loss, steps, tokens, strict=True)
    return [AttemptCurves(curve.generation, *points) for curve, *points in rows]


def _thinned(of_all: Sequence[_Points], most: int) -> list[_Points]:
    if sum(map(len, of_all)) <= most:
        return list(of_all)
    ends = [points if len(points) < 2 else [points[0], points[-1]] for points in of_all]
    numbered = [(number, point) for number, points in enumerate(ends) for point in points]
    if len(numbered) > most:
        last = len(numbered) - 1
        numbered = [numbered[at * last // (most - 1)] for at in range(most)]
    return [[point for own, point in numbered if own == number] for number in range(len(of_all))]
