"""The part of the store's contract about what evaluations of models measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from spotd.domain.evaluation import Evaluation
from spotd.store.node_history_records import HistoryRecords


@dataclass(frozen=True)
class EvaluationRow:
    """A measurement that was handed in at `at_us`; `source` is who did: a node's id, or a user."""

    job_id: str
    at_us: int
    source: str
    told: Evaluation


class ResultRecords(HistoryRecords, Protocol):
    """A part of `spotd.store.interface.Store`."""

    def record_evaluation(self, row: EvaluationRow) -> bool:
        """Whether it is new: the same measurement again of the same job changes nothing, unless
        another one of that suite came between. Then this one is the last again."""
        ...

    def evaluations(self, job_id: str = "") -> list[EvaluationRow]:
        """Of that job, or of all; in the order in which they were handed in."""
        ...
