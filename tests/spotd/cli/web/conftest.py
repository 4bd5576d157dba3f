from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotd.cli.client import Client, Target
from spotd.cli.web import source
from spotd.cli.web.door import open_door
from spotd.cli.web.source import Source
from tests.spotd.serve.rig import Rig


@pytest.fixture
def client(rig: Rig) -> Client:
    return Client(rig.socket)


@pytest.fixture
def url(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the pages of that daemon; what was read is not kept."""
    monkeypatch.setattr(source, "_AGAIN_S", 0.0)
    told = Source(Target(socket=str(rig.socket)), kept=0.0)
    door = open_door(told)
    yield door.url
    door.stop()
    told.close()
