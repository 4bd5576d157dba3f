"""What the agent has to say about the training of its machine without ending it.

It goes into the journal as a WARNING, which every daemon understands; one that knows more reads
which verdict it is, and what it rests upon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class HealthWarning:
    """A verdict by name, the sentence for people, and the numbers."""

    verdict: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        """What WARNING says."""
        return {"text": self.text, "verdict": self.verdict, "about": dict(self.data)}
