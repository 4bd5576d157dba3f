"""Optional provider capability: have the cloud preempt a spot machine on request, to test
recovery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from providers.base import RejectedError


@dataclass(frozen=True)
class Interruption:
    """An accepted interruption: the call and its answer, for a report, and how many seconds the
    machine may wait for its notice according to the vendor."""

    request: str
    notice_within_s: float


@runtime_checkable
class FaultInjector(Protocol):
    """A provider that can interrupt its own machines. `interruption_usd` is the maximum fee of the
    cloud for one interruption, on top of the machine."""

    @property
    def interruption_usd(self) -> float: ...

    def interrupt(self, instance_id: str) -> Interruption:
        """Have the cloud preempt a spot machine of this deployment, with its usual notice and end.

        Raises RejectedError for a machine that is not of this deployment or not spot, and any other
        `ProviderError`.
        """
        ...


def not_interruptible(instance_id: str) -> RejectedError:
    """The error for a machine that does not exist, or that the cloud does not preempt."""
    return RejectedError(f"{instance_id} is not a spot machine of this deployment")
