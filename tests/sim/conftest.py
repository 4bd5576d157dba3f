"""What every test of the simulator needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.sim.quiet import quiet


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """The daemon logs every fault that it meets; a trace with all its locals takes longer to print
    than the hours in which it happened take to play."""
    before = structlog.get_config()
    quiet()
    yield
    structlog.configure(**before)
