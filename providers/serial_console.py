"""Optional provider capability: read the serial console of a machine."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class SerialConsole(Protocol):
    def read_serial_console(self, instance_id: str) -> str:
        """Return the end of the machine's serial console output that the cloud has so far, "" for
        none.

        May raise any `ProviderError`.
        """
        ...
