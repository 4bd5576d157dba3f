"""A verb that not every provider has: what its adapter came upon that a person should know of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class ProviderWarning:
    """`key` names it, with the make of cloud where that is what it is about; `times` says how often
    it was come upon, by this process."""

    key: str
    text: str
    times: int = 1


@runtime_checkable
class WarningSource(Protocol):
    """What a provider can also be asked, without a call to its cloud."""

    def remarks(self) -> Sequence[ProviderWarning]:
        """Everything since this process began, each by its first text. Raises nothing."""
        ...
