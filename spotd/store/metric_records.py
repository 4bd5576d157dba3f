"""What metrics are made of, as it comes out of the record; see `spotd.store.metric_queries`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotd.history.recoveries import Recovery

PROVISION_S = (30, 60, 120, 240, 360, 480, 900, 1800, 3600)  # 2 to 8 min is what guides promise
NOTICE_S = (5, 15, 30, 60, 90, 120, 300)
MARGIN_S = (-30, -10, 0, 5, 10, 20, 30, 60, 90, 120)
SAVE_S = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900)
STALL_S = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120)
RECOVERY_S = (1, 5, 15, 30, 60, 120, 240, 480, 660, 1200, 3600)


@dataclass(frozen=True)
class Histogram:
    """A histogram: how many were at most each bound (`below`, in its order), all, and their sum."""

    bounds: Sequence[float]
    below: Sequence[int]
    count: int
    total: float

    @classmethod
    def of(cls, values: Iterable[float], bounds: Sequence[float]) -> Histogram:
        known = list(values)
        below = [sum(value <= bound for value in known) for bound in bounds]
        return cls(bounds, below, len(known), float(sum(known)))

    def __add__(self, other: Histogram) -> Histogram:
        below = [a + b for a, b in zip(self.below, other.below, strict=True)]
        return Histogram(self.bounds, below, self.count + other.count, self.total + other.total)


@dataclass(frozen=True)
class PoolRow:
    """Machines of one offer that fared alike. `outcome` of the request: "" while it is open,
    "moved" of a machine that another attempt took over and nobody asked for; `reason`: "" unless
    the machine was taken away or lost, and `told` whether with a notice. `seconds` are those of
    their lives; the histograms are of hello after the request, of notices, and of what was left of
    these when work had been given back."""

    offer_key: str
    outcome: str
    reason: str
    told: bool
    count: int
    seconds: float
    provision: Histogram
    notice: Histogram
    margin: Histogram


@dataclass(frozen=True)
class SaveRow:
    """Checkpoints that were asked for alike."""

    trigger: str
    count: int
    bytes: int
    write: Histogram
    stall: Histogram


@dataclass(frozen=True)
class SpentRow:
    """What a job cost, micro-USD: `kind` machines, or carriage: checkpoints, and data that
    was brought ahead or read over mounts; `invoiced` as a bill had it."""

    job_id: str
    kind: str
    invoiced: bool
    microusd: int


@dataclass(frozen=True)
class RateRow:
    """A machine that is paid for now."""

    job_id: str
    offer_key: str
    microusd_per_h: int


@dataclass(frozen=True)
class MetricRecords:
    """All of it. `saved_at_us`: unfinished job -> its newest checkpoint. `usage`: job -> what its
    machines reported of the last 15 min (see verdicts.use_of). `overdue_us`: since when the oldest
    job that is due waits for a decision, 0 for none. `held`: holder -> duties. `disabled`:
    provider -> out of use for its credentials. `projects`: of the jobs in `spent` and `rates`."""

    pools: Sequence[PoolRow] = ()
    saves: Sequence[SaveRow] = ()
    spent: Sequence[SpentRow] = ()
    rates: Sequence[RateRow] = ()
    recoveries: Sequence[Recovery] = ()
    finished: Mapping[str, int] = field(default_factory=dict)
    saved_at_us: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    overdue_us: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    disabled: Mapping[str, bool] = field(default_factory=dict)
    projects: Mapping[str, str] = field(default_factory=dict)
