"""Check a program's reported losses, whichever engine saves it.

* **nan**: NON_FINITE_RUN losses in a row are not finite, after some were. A program with spotd's
  engine handles this itself (trainer.reference.numbers); any other continues uselessly.
* **nan_after_resume**: none of the first losses after a resume is finite, so the checkpoint is
  probably broken.
* **loss_spike**: the median of the last RECENT losses exceeds SPIKE times the median of the
  BASELINE losses before them, and their scatter. Most spikes recover by themselves.

Each is reported once, and again only after normal losses in between.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import median

from trainer.agent.base.health_verdict import HealthWarning

NAN = "nan"
NAN_AFTER_RESUME = "nan_after_resume"
SPIKE_NAME = "loss_spike"
FIRST_LOSSES = 5  # steps after a resume that show whether its state is broken
# In a row: neither an accident of one batch nor a gradient scaler that searches for its factor.
NON_FINITE_RUN = 100
RECENT, BASELINE, MIN_BASELINE = 10, 200, 50
SPIKE = 2.0
SCATTER = 6.0  # times the median distance from the median


class LossChecker:
    """Receives each report of a program in order. Sans I/O."""

    def __init__(self) -> None:
        self._finite: deque[float] = deque(maxlen=BASELINE + RECENT)
        self._warned: set[str] = set()
        self._non_finite = self._count = 0  # in a row, and since the program started
        self._resumed_at: int | None = None

    def begin(self, resumed_at: int) -> None:
        """Start over for a program that resumed at this step; 0 means from scratch."""
        self._finite.clear()
        self._warned.clear()
        self._non_finite = self._count = 0
        self._resumed_at = resumed_at or None

    def add(self, from_step: int, losses: Sequence[float]) -> list[HealthWarning]:
        """Add a report and return the warnings it causes."""
        warnings: list[HealthWarning] = []
        for step, loss in enumerate(losses, start=from_step):
            self._count += 1
            if math.isfinite(loss):
                self._non_finite = 0
                self._warned -= {NAN}
                self._finite.append(loss)
            else:
                self._non_finite += 1
                warnings += self._check_non_finite(step)
        return warnings + self._check_spike(from_step + len(losses) - 1)

    def _check_non_finite(self, step: int) -> list[HealthWarning]:
        resumed_at = self._resumed_at
        if resumed_at is not None and self._non_finite == self._count == FIRST_LOSSES:
            text = f"none of the first {FIRST_LOSSES} losses after the resume at step {resumed_at}"
            data = {"step": step, "resumed_at": resumed_at}
            return self._warn_once(NAN_AFTER_RESUME, f"{text} is a finite number", data)
        if self._non_finite == NON_FINITE_RUN and self._finite:
            text = f"{NON_FINITE_RUN} losses in a row, up to step {step}, are not finite numbers"
            return self._warn_once(NAN, text, {"step": step, "losses": NON_FINITE_RUN})
        return []

    def _check_spike(self, step: int) -> list[HealthWarning]:
        if len(self._finite) < MIN_BASELINE + RECENT:
            return []
        count = len(self._finite) - RECENT
        earlier = list(islice(self._finite, count))
        recent, baseline = median(islice(self._finite, count, None)), median(earlier)
        scatter = median(abs(loss - baseline) for loss in earlier)
        if recent <= max(SPIKE * baseline, baseline + SCATTER * scatter) or baseline <= 0:
            if recent <= baseline + SCATTER * scatter:
                self._warned -= {SPIKE_NAME}
            return []
        text = f"the loss is {recent:.4g} at step {step}, and was {baseline:.4g}"
        data = {"step": step, "loss": recent, "before": baseline}
        return self._warn_once(SPIKE_NAME, f"{text} over the {len(earlier)} steps before", data)

    def _warn_once(self, name: str, text: str, data: Mapping[str, float]) -> list[HealthWarning]:
        if name in self._warned:
            return []
        self._warned.add(name)
        return [HealthWarning(name, text, data)]
