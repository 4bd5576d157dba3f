from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotd.api_client.client import Client, Target
from spotd.dashboard import api_cache
from spotd.dashboard.api_cache import ApiCache
from spotd.dashboard.server import start_server
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import folder, rig, spotctl, ssh

__all__ = ["client", "folder", "rig", "spotctl", "ssh", "url"]


@pytest.fixture
def client(rig: Rig) -> Client:
    return Client(rig.socket)


@pytest.fixture
def url(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the pages of that daemon; what was read is not kept."""
    monkeypatch.setattr(api_cache, "_RETRY_S", 0.0)
    cache = ApiCache(Target(socket=str(rig.socket)), age_factor=0.0)
    server = start_server(cache)
    yield server.url
    server.stop()
    cache.close()
