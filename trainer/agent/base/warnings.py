"""Warnings about training that do not end it.

The journal has them as WARNING entries, whose text every daemon can show. A daemon that knows the
verdict's name also uses its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class HealthWarning:
    """A named verdict, its sentence for people, and its numbers."""

    verdict: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        """Return the data of a WARNING entry."""
        return {"text": self.text, "verdict": self.verdict, "about": dict(self.data)}
