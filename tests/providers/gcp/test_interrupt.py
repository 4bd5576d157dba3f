"""A Spot preemption on request by Google Cloud."""

from __future__ import annotations

import pytest

from providers.base import AuthError, CapacityType, RejectedError
from providers.fault_injection import FaultInjector
from tests.fixtures.waiting import until
from tests.providers.gcp.conftest import Lab, request

MACHINE = "us-central1-a/spotd-j1"


def test_the_machine_is_preempted_as_any_that_is_taken_back(lab: Lab) -> None:
    cloud = lab.cloud()
    assert isinstance(cloud, FaultInjector)
    cloud.launch(request("spotd-j1"))
    cloud.notices()
    lab.calls()
    result = cloud.interrupt(MACHINE)
    [line] = [
        call.line for call in lab.gce.calls if call.method.endswith("simulateMaintenanceEvent")
    ]
    path = f"/compute/v1/projects/{lab.name}/zones/us-central1-a/instances/spotd-j1"
    assert line == f"POST {path}/simulateMaintenanceEvent"
    assert result.request.startswith("simulateMaintenanceEvent: operation operation-")
    [notice] = until(cloud.notices)
    assert notice.instance_id == MACHINE
    until(lambda: not cloud.list())


def test_none_but_spot_machines_of_ours_are_taken(lab: Lab) -> None:
    cloud = lab.cloud()
    cloud.launch(request("spotd-j1"))
    cloud.launch(request("spotd-j2", capacity_type=CapacityType.ON_DEMAND))
    lab.calls()
    for resource_id, deployment in ((MACHINE, "d1"), (MACHINE[:-1] + "2", "d0"), ("z/none", "d0")):
        with pytest.raises(RejectedError, match="is not a spot machine of this deployment"):
            lab.cloud(deployment).interrupt(resource_id)
    assert "instances.simulateMaintenanceEvent" not in lab.calls()
    lab.fault("unauthorized", "instances.simulateMaintenanceEvent")
    with pytest.raises(AuthError):
        cloud.interrupt(MACHINE)
