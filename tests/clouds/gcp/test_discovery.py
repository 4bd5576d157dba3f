"""The validation of the Google Cloud stand-in finds mistakes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.clouds.gcp.discovery import ShapeError, api

MACHINE: dict[str, Any] = {
    "id": "18446744073709551615",
    "name": "spotd-j1",
    "status": "RUNNING",
    "labelFingerprint": "42WmSpB8rSM=",
    "labels": {"spotd-job": "j1"},
    "networkInterfaces": [{"networkIP": "10.0.0.1", "accessConfigs": [{"natIP": "198.51.100.1"}]}],
    "scheduling": {
        "automaticRestart": False,
        "provisioningModel": "SPOT",
        "maxRunDuration": {"seconds": "60"},
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """MACHINE with one field set, or renamed."""
    machine = copy.deepcopy(MACHINE)
    *parents, name = path.split(".")
    node: Any = machine
    for parent in parents:
        node = node[int(parent)] if parent.isdecimal() else node[parent]
    node[name] = value
    return machine


def test_a_machine_as_it_is_described() -> None:
    api("compute.v1").check("Instance", MACHINE)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("networkInterfaces.0.networkIp", "10.0.0.1", "no field networkIp"),
        ("scheduling.provisioning_model", "SPOT", "no field provisioning_model"),
        ("scheduling.provisioningModel", "SPOTTY", "none of"),
        ("scheduling.automaticRestart", "false", "is not a boolean"),
        ("scheduling.maxRunDuration", "60s", "is not an? object"),
        ("scheduling.maxRunDuration.seconds", 60, "is not a string"),
        ("status", "STARTED", "none of"),
        ("status", 5, "is not a string"),
        ("id", "18446744073709551616", "is not a uint64"),
        ("id", "abc", "is not a uint64"),
        ("name", "Spotd_j1", "does not match"),
        ("labels", [], "is not an? object"),
        ("labels.count", 1, "is not a string"),
        ("labelFingerprint", "no base64!", "is not a byte"),
        ("networkInterfaces", {}, "is not an? list"),
    ],
)
def test_what_is_wrong_is_found(path: str, value: object, says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        api("compute.v1").check("Instance", changed(path, value))


def test_methods_and_their_parameters() -> None:
    compute = api("compute.v1")
    insert = compute.method("POST", "/compute/v1/projects/p/zones/us-central1-a/instances")
    assert (insert.ident, insert.request, insert.response) == (
        "compute.instances.insert",
        "Instance",
        "Operation",
    )
    assert insert.given == {"project": "p", "zone": "us-central1-a"}
    compute.check_parameters(insert, {"requestId": "x", "alt": "json"})
    for wrong in ({"request_id": "x"}, {"project": "p"}, {"alt": "xml"}):
        with pytest.raises(ShapeError):
            compute.check_parameters(insert, wrong)
    with pytest.raises(ShapeError, match="no method"):
        compute.method("PUT", "/compute/v1/projects/p/zones/us-central1-a/instances")


def test_the_billing_catalog_is_described_as_well() -> None:
    billing = api("cloudbilling.v1")
    skus = billing.method("GET", "/v1/services/6F81-5844-456A/skus")
    assert skus.response == "ListSkusResponse"
    with pytest.raises(ShapeError, match="no field serviceRegion"):
        billing.check("ListSkusResponse", {"skus": [{"serviceRegion": ["us-central1"]}]})
