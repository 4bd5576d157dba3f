"""A Spot machine that Google Cloud takes back on request."""

from __future__ import annotations

import pytest

from providers.base import AuthError, CapacityType, RejectedError
from providers.fault_injection import Interrupter
from tests.fixtures.waiting import until
from tests.providers.gcp.conftest import Lab, request

MACHINE = "us-central1-a/spotd-j1"


def test_the_machine_is_preempted_as_any_that_is_taken_back(lab: Lab) -> None:
    cloud = lab.cloud()
    assert isinstance(cloud, Interrupter)
    cloud.launch(request("spotd-j1"))
    cloud.notices()
    lab.calls()
    found = cloud.interrupt(MACHINE)
    [line] = [one.line for one in lab.gce.calls if one.method.endswith("simulateMaintenanceEvent")]
    path = f"/compute/v1/projects/{lab.name}/zones/us-central1-a/instances/spotd-j1"
    assert line == f"POST {path}/simulateMaintenanceEvent"
    assert found.asked.startswith("simulateMaintenanceEvent: operation operation-")
    [notice] = until(cloud.notices)
    assert notice.instance_id == MACHINE
    until(lambda: not cloud.list())


def test_none_but_spot_machines_of_ours_are_taken(lab: Lab) -> None:
    cloud = lab.cloud()
    cloud.launch(request("spotd-j1"))
    cloud.launch(request("spotd-j2", capacity_type=CapacityType.ON_DEMAND))
    lab.calls()
    for ident, deployment in ((MACHINE, "d1"), (MACHINE[:-1] + "2", "d0"), ("z/none", "d0")):
        with pytest.raises(RejectedError, match="is no spot machine of this deployment"):
            lab.cloud(deployment).interrupt(ident)
    assert "instances.simulateMaintenanceEvent" not in lab.calls()
    lab.fault("unauthorized", "instances.simulateMaintenanceEvent")
    with pytest.raises(AuthError):
        cloud.interrupt(MACHINE)
