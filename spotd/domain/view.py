"""One job with its nodes and measurements, as one decision sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from spotd.domain.health import Diagnosis, Setbacks
from spotd.domain.job import Attempt, Job
from spotd.domain.lost_work import HandOver
from spotd.domain.node import Node
from spotd.domain.node_history import Prerequisite
from spotd.domain.preferences import GenerationSaves


@dataclass(frozen=True)
class Throughput:
    """One report: `tokens` in `busy_s` seconds, without saves and evaluation."""

    generation: int
    at_us: int
    step: int
    tokens: int
    busy_s: float


@dataclass(frozen=True)
class View:
    """Everything that a decision about one job may read.

    `nodes` are all not gone, and those of the newest attempt. `throughput` is of the newest attempt
    that chose its machines, oldest first, bounded. `spent_microusd` is up to `loaded_at_us`, for
    checkpoints as far as recorded. `verdicts` are among the newest events of a training job, oldest
    first. `typical_tokens_per_s` is of the earlier attempt on this machine type, 0.0 for none.
    `saved` are checkpoints by generation, of a job whose amount of work is known. `before` is the
    job it comes after. `hand_over` is from the attempt that trained before, while a machine begins
    to train.
    """

    job: Job
    attempts: tuple[Attempt, ...]
    nodes: tuple[Node, ...]
    throughput: tuple[Throughput, ...] = ()
    spent_microusd: int = 0
    loaded_at_us: int = 0
    verdicts: tuple[Diagnosis, ...] = ()
    typical_tokens_per_s: float = 0.0
    saved: tuple[GenerationSaves, ...] = ()
    setbacks: Setbacks = field(default_factory=Setbacks)
    before: Prerequisite | None = None
    hand_over: HandOver | None = None
