"""Fixtures for the tests of the Azure adapter."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

from providers.azure.clients import Clients
from providers.azure.cloud import AzureCloud
from providers.azure.create_machine import PollSchedule
from providers.base import CapacityType, LaunchRequest
from tests.clouds.azure.catalog import H100
from tests.clouds.azure.serving import StandIn
from tests.fixtures.local_cloud import host_key, user_key

_numbers = itertools.count()
QUICK = PollSchedule(patience_s=5.0, poll_s=0.01)
HURRIED = PollSchedule(patience_s=0.0, poll_s=0.01)  # looks at no operation


def provider(azure: StandIn, **changes: Any) -> AzureCloud:
    """An adapter in a resource group of its own, with the shared clients unless others are given
    (None: its own)."""
    settings = {
        "name": "azure",
        "deployment": "d0",
        "regions": ("eastus",),
        "pace": QUICK,
        **azure.settings,
        "resource_group": f"own{next(_numbers)}",
    }
    if not changes.keys() & {"endpoint", "authority", "prices_endpoint", "timeout_s", "clients"}:
        settings["clients"] = connected(azure)
    return AzureCloud(**(settings | changes))


@cache
def connected(azure: StandIn, timeout_s: float = 10.0) -> Clients:
    """Return connections and a token shared with other tests. For tests that are not about
    clients."""
    places = {k: v for k, v in azure.settings.items() if k != "resource_group"}
    return Clients(**places, timeout_s=timeout_s)


def again(cloud: AzureCloud, azure: StandIn, **changes: Any) -> AzureCloud:
    """Return the same adapter as another process has it."""
    return provider(azure, resource_group=cloud._group, **changes)


def request(token: str, **changes: Any) -> LaunchRequest:
    """For an H100 machine in a zone."""
    passed: dict[str, Any] = {
        "token": token,
        "name": token,
        "region": "eastus",
        "zone": "eastus-1",
        "instance_type": H100,
        "capacity_type": CapacityType.SPOT,
        "tags": {
            "spotd-job": "j1",
            "spotd-generation": "1",
            "spotd-rank": "0",
            "spotd-expires": "1900000000",
        },
        "ssh_user": "spotd",
        "ssh_public_key": user_key().public,
        "host_private_key": host_key().private,
        "host_public_key": host_key().public,
    }
    return LaunchRequest(**(passed | changes))
