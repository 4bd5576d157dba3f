"""Data that jobs mount by name: declared once, in one store, and brought to others by whoever wants
it there first, or by the control box ahead of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DataSet:
    """Declared once. `copies` are stores that it may be brought to, for no more than `max_microusd`
    each; `microusd_per_gb` is what somebody has said that a GB costs which leaves `url`, and
    `leaving` what each cloud takes for it. `size_bytes` 0 is not known. `staged` are the copies
    that have all of it, `missing` those that were seen without. `box_microusd_per_gb` is what a GB
    costs that leaves the control box, which may bring it ahead of a job; None: nobody has said."""

    url: str
    copies: Sequence[str]
    max_microusd: int
    leaving: Mapping[str, int]
    microusd_per_gb: int | None = None
    size_bytes: int = 0
    staged: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    box_microusd_per_gb: int | None = None
