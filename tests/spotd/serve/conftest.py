from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotd.cli.client import Client
from tests.spotd.serve.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig().start()
    yield rig
    rig.close()


@pytest.fixture
def client(rig: Rig) -> Client:
    return Client(rig.socket)
