"""Azure on this computer, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from providers.azure import clients
from tests.clouds.azure.arm import SUBSCRIPTION
from tests.clouds.azure.machines import World
from tests.clouds.azure.serving import StandIn, serving
from tests.providers.azure.rig import connected


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with serving(tmp_path_factory.mktemp("azure")) as standin:
        yield standin


@pytest.fixture(scope="module")
def running(standing: StandIn) -> Iterator[StandIn]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in standing.environ.items():
            patch.setenv(name, value)
        patch.setattr(clients, "TOKEN_BACKOFF_S", 0.0)
        connected(standing).compute(lambda _: None)  # its credentials are those of now
        yield standing


@pytest.fixture
def azure(running: StandIn) -> Iterator[StandIn]:
    """Without machines. It must have received and sent nothing that Azure's models do not know."""
    arm = running.arm
    arm.calls.clear()
    arm.world = World(SUBSCRIPTION, arm.fleet, arm.lock)
    yield running
    wrong, arm.wrong = arm.wrong, []
    assert wrong == []
    arm.faults.clear()
