"""Azure on this machine, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clouds.azure.serving import StandIn, serving


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(tmp_path_factory.mktemp("azure")) as standin,
    ):
        for name, value in standin.environ.items():
            patch.setenv(name, value)
        yield standin


@pytest.fixture
def azure(running: StandIn) -> Iterator[StandIn]:
    """It must have been sent, and have said, nothing that Azure's models do not know."""
    running.arm.calls.clear()
    yield running
    wrong, running.arm.wrong = running.arm.wrong, []
    assert wrong == []
    running.arm.faults.clear()
