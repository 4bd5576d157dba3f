"""A Spot eviction on request by Azure."""

from __future__ import annotations

import pytest

from providers.base import AuthError, CapacityType, RejectedError
from providers.fault_injection import FaultInjector
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.providers.azure.rig import again, provider, request
from tests.providers.azure.test_launch import on_the_wire, shown


def test_the_machine_is_evicted(azure: StandIn) -> None:
    cloud = provider(azure, resource_group="spotd")
    assert isinstance(cloud, FaultInjector)
    cloud.launch(request("taken"))
    azure.arm.calls.clear()
    assert cloud.interrupt("taken").notice_within_s == 2100.0
    [call] = [call for call in azure.arm.calls if call.method == "POST"]
    assert shown("simulate an eviction") == (on_the_wire(call), None)
    assert cloud.list() == []


def test_none_but_spot_machines_of_ours_are_taken(azure: StandIn) -> None:
    cloud = provider(azure)
    cloud.launch(request("taken"))
    cloud.launch(request("plain", capacity_type=CapacityType.ON_DEMAND))
    azure.arm.calls.clear()
    stranger = again(cloud, azure, deployment="d1")
    for one, owner in (("plain", cloud), ("taken", stranger), ("none", cloud)):
        with pytest.raises(RejectedError, match="is not a spot machine of this deployment"):
            owner.interrupt(one)
    assert not [call for call in azure.arm.calls if call.method == "POST"]
    azure.arm.faults.arm(Fault("unauthorized", ("POST simulateEviction",)))
    with pytest.raises(AuthError):
        cloud.interrupt("taken")
