"""Where a node is in its part of a generation."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """In order, but that any of them may be the last before ENDED."""

    WAITING = "waiting for start"
    PREPARING = "preparing the machine and unpacking packages"
    SETUP = "setup"
    CLAIMING = "waiting to claim HEAD"
    RUNNING = "running"
    SETTLING = "telling HEAD how it ended"
    ENDED = "ended"
