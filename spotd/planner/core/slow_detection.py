"""Detect training that is slower than it should be.

The rule of the source documents: below 60 % of the job's own baseline in four checks of 30 s, that
is 90 to 120 s after the onset, a checkpoint is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from spotd.domain.health import HealthSpec
from spotd.domain.units import S
from spotd.domain.view import Throughput

MIN_BASELINE_SAMPLES = 4
WARM_UP_US = 180 * S  # compiling and caches: what is reported before says nothing of a machine


def baseline_tokens_per_s(samples: Sequence[Throughput], before_us: int) -> float:
    """Return the median rate of the reports up to `before_us`; 0.0 if there are too few.

    Samples without busy time (a garbled or empty report) do not count.
    """
    rates = [s.tokens / s.busy_s for s in samples if s.busy_s > 0 and s.at_us <= before_us]
    return median(rates) if len(rates) >= MIN_BASELINE_SAMPLES else 0.0


def slow(
    samples: Sequence[Throughput],
    spec: HealthSpec,
    now_us: int,
    typical_tokens_per_s: float = 0.0,
) -> bool:
    """Return whether each of the last `spec.checks` windows of `spec.check_every_s` was bad.

    A window is bad when its rate is below `ratio` of the baseline, or when nothing was reported in
    it at all: a silent trainer is not a fast one. A window with a report but no busy time (a long
    save or evaluation) does not count as bad. The baseline comes from before the windows; where the
    same job did better before on this type of machine (`typical_tokens_per_s`), it is that.
    """
    window_us = int(spec.check_every_s * S)
    horizon_us = now_us - spec.checks * window_us
    baseline = max(baseline_tokens_per_s(samples, horizon_us), typical_tokens_per_s)
    if baseline == 0.0:
        return False
    for check in range(spec.checks):
        end_us = now_us - check * window_us
        inside = [s for s in samples if end_us - window_us < s.at_us <= end_us]
        busy_s = sum(s.busy_s for s in inside)
        tokens = sum(s.tokens for s in inside)
        if inside and (busy_s == 0 or tokens / busy_s >= spec.ratio * baseline):
            return False
    return True
