"""A verb that not every provider has: what a machine says on its serial console."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Console(Protocol):
    """What a provider can also be asked, where its cloud keeps it."""

    def console(self, instance_id: str) -> str:
        """The end of what a machine has written to its serial console, as the cloud has it by now;
        "" when it has nothing. May raise any `ProviderError`."""
        ...
