from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotd.api_client.client import Client
from tests.spotd.api.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig().start()
    yield rig
    rig.close()


@pytest.fixture
def client(rig: Rig) -> Client:
    return Client(rig.socket)
