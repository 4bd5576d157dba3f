from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig().start()
    yield rig
    rig.close()


@pytest.fixture
def client(rig: Rig) -> PathClient:
    return PathClient(rig.socket)
