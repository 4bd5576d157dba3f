"""The ranks of a gang: their network interfaces, and their shared placement policy."""

from __future__ import annotations

import time
from typing import Any

import pytest

from providers.base import (
    CapacityType,
    LeftoverKind,
    OfferRequest,
    RejectedError,
    UnknownOutcome,
    UnpreparedError,
)
from providers.gcp import fabric
from tests.fixtures.waiting import LIMIT_S, until
from tests.providers.gcp.conftest import Lab, request

GANG: dict[str, Any] = {"gang": "spotd-j1-g1", "interconnect": "gpudirect"}
HERE = "projects/lab/regions/us-central1/subnetworks/fast"


@pytest.fixture(autouse=True)
def _networks(lab: Lab) -> None:
    lab.gce.policies.slow = 2
    lab.gce.machines.subnetworks |= {f"fast-{n}" for n in range(1, 5)}


@pytest.mark.parametrize(
    ("kind", "plain", "rdma"),
    [
        ("a3-highgpu-8g", 4, 0),
        ("a3-megagpu-8g", 8, 0),
        ("a3-ultragpu-8g", 1, 8),
        ("g2-standard-4", 0, 0),
    ],
)
def test_the_cards_of_a_type(kind: str, plain: int, rdma: int) -> None:
    received = request("spotd-j1", instance_type=kind, **GANG)
    result = fabric.extra_cards(received, "lab", "fast")
    assert result == [
        *({"subnetwork": f"{HERE}-{n}", "nicType": "GVNIC"} for n in range(1, plain + 1)),
        *(
            {"subnetwork": f"{HERE}-rdma-us-central1-a-{n}", "nicType": "MRDMA"}
            for n in range(1, rdma + 1)
        ),
    ]
    assert fabric.extra_cards(request("spotd-j1", instance_type=kind), "lab", "fast") == []


def test_an_offer_says_gpudirect_where_there_are_networks_for_it(lab: Lab) -> None:
    for settings, wanted in (({}, set()), ({"fabric": "fast"}, {"a3-highgpu-8g", "a3-megagpu-8g"})):
        offers = lab.cloud(**settings).offers(OfferRequest())
        assert {offer.instance_type for offer in offers if offer.interconnect} == wanted
        lacking = {offer.instance_type for offer in offers if offer.joins_with}
        assert lacking == {"a3-highgpu-8g", "a3-megagpu-8g"} - wanted
        assert {offer.joins_with for offer in offers} <= {"", "fabric in [providers.gcp]"}


def test_ranks_share_one_policy_and_it_goes_after_the_last_of_them(lab: Lab) -> None:
    cloud = lab.cloud(fabric="fast")
    names = [f"spotd-j1-r{rank}" for rank in range(2)]
    for name in names:
        cloud.launch(request(name, tags={"spotd-token": name, "spotd-job": "j1"}, **GANG))
    assert lab.calls().count("resourcePolicies.insert") == 1
    rows = [machine.row for machine in lab.project.machines.values()]
    assert [row["resourcePolicies"] for row in rows] == [
        [f"projects/{lab.name}/regions/us-central1/resourcePolicies/spotd-j1-g1"]
    ] * 2
    assert [len(row["networkInterfaces"]) for row in rows] == [5, 5]
    assert cloud.leftovers() == []
    with pytest.raises(RejectedError, match="already being used"):
        cloud.discard("us-central1/policy/spotd-j1-g1")
    for name in names:
        assert cloud.leftovers() == []
        cloud.terminate(f"us-central1-a/{name}")
        until(lambda gone=name: gone not in str(cloud.list()))
    [left] = cloud.leftovers()
    assert (left.leftover_id, left.kind) == ("us-central1/policy/spotd-j1-g1", LeftoverKind.GROUP)
    assert left.tags["spotd-token"] == names[0]
    assert lab.cloud("other").leftovers() == []
    cloud.discard(left.leftover_id)
    cloud.discard(left.leftover_id)  # gone already
    assert cloud.leftovers() == []


def test_a_policy_that_is_still_being_made_is_no_refusal(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same launch finds it at the next try."""
    monkeypatch.setattr(fabric, "READY_TIMEOUT_S", 0.0)
    lab.gce.policies.slow = 1
    cloud = lab.cloud(fabric="fast")
    with pytest.raises(UnknownOutcome, match="still being created"):
        cloud.launch(request("spotd-j1", **GANG))
    assert not lab.project.machines
    cloud.launch(request("spotd-j1", **GANG))
    assert len(lab.project.machines) == 1


def test_it_never_outlasts_the_launch(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "READY_TIMEOUT_S", LIMIT_S)
    lab.gce.policies.slow = 100  # polls: who goes on finds it ready
    with pytest.raises(UnknownOutcome):
        fabric.make_policy(
            lab.cloud()._clients, request("spotd-j1", **GANG), {}, time.monotonic() + 0.3
        )


@pytest.mark.parametrize("reservation", ["may", ""])
def test_booked_time_is_close_together_already(lab: Lab, reservation: str) -> None:
    held = {"capacity_type": CapacityType.BLOCK, "reservation": reservation}
    lab.cloud(fabric="fast").launch(request("spotd-j1", **GANG, **held))
    [machine] = lab.project.machines.values()
    assert "resourcePolicies" not in machine.row
    assert len(machine.row["networkInterfaces"]) == 5


def test_networks_that_are_not_there_spoil_the_place(lab: Lab) -> None:
    with pytest.raises(UnpreparedError, match="slow-1"):
        lab.cloud(fabric="slow").launch(request("spotd-j1", **GANG))
