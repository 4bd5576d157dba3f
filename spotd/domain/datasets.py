"""Data that jobs mount by name: declared in one store and copied to others.

The first machine that wants a copy makes it, or the control box does ahead of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DataSet:
    """A declared data set.

    `copies` are stores that it may be copied to, for at most `max_microusd` each. `microusd_per_gb`
    is the configured price of a GB that leaves `url`, `leaving` each cloud's price. `size_bytes` is
    0 if unknown. `staged` are the complete copies, `missing` those seen to be absent.
    `box_microusd_per_gb` is the price of a GB that leaves the control box; None if not configured.
    """

    url: str
    copies: Sequence[str]
    max_microusd: int
    leaving: Mapping[str, int]
    microusd_per_gb: int | None = None
    size_bytes: int = 0
    staged: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    box_microusd_per_gb: int | None = None
