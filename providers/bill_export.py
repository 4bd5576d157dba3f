"""The columns of a cloud's billing export, which `spotctl cost reconcile` reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BillExport:
    """The possible column names of an export, by meaning: in lower case, letters and digits
    alone."""

    machine: Sequence[str]
    cost: Sequence[str]
    start: Sequence[str]
    end: Sequence[str]
    currency: Sequence[str]
    what: Sequence[str]  # description; the first that is not empty is used
    is_machine: Callable[[str, str], bool]  # of its id and what
    is_gpu: Callable[[str], bool]
    kind: Sequence[str]  # of a line: usage, a credit, ...
    credits: Sequence[str] = ()  # in a line of usage
    credits_kind: Sequence[str] = ()
