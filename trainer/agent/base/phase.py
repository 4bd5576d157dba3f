"""The phases of a node within one generation."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """In order; any phase can be the last before ENDED."""

    WAITING = "waiting for start"
    PREPARING = "preparing the machine and unpacking packages"
    SETUP = "setup"
    CLAIMING = "waiting to claim HEAD"
    RUNNING = "running"
    COLLECTING = "uploading its outputs"
    SETTLING = "recording the result in HEAD"
    ENDED = "ended"


AFTER_PROGRAM = frozenset({Phase.COLLECTING, Phase.SETTLING})
