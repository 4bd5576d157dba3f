"""Optional provider capability: report findings of the adapter that need a person's attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class ProviderWarning:
    """`key` identifies the warning and names the cloud where it is about one; `times` counts its
    occurrences in this process."""

    key: str
    text: str
    times: int = 1


@runtime_checkable
class WarningSource(Protocol):
    def warnings(self) -> Sequence[ProviderWarning]:
        """Return all warnings since this process started, each with its first text. Calls no cloud
        and raises nothing."""
        ...
