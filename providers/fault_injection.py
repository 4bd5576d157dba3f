"""A verb that not every provider has: its cloud's own way to take a spot machine back on request,
so that what a machine does then can be seen before the market does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from providers.base import RejectedError


@dataclass(frozen=True)
class Interruption:
    """What the cloud took on: the call and what it answered, for a report, and within how many
    seconds the machine is to hear of it, by what the vendor says."""

    asked: str
    heard_within_s: float


@runtime_checkable
class Interrupter(Protocol):
    """What a provider can also do. `interruption_usd` is what its cloud takes for one, at most,
    beside the machine."""

    @property
    def interruption_usd(self) -> float: ...

    def interrupt(self, instance_id: str) -> Interruption:
        """Have the cloud take a spot machine of our deployment back, with the notice and the end
        that it gives any. Raises RejectedError for one that is not ours, or is not spot, and any
        other `ProviderError`."""
        ...


def not_to_be_taken(instance_id: str) -> RejectedError:
    """Of a machine that there is none of, or that no cloud takes back."""
    return RejectedError(f"{instance_id} is no spot machine of this deployment")
