"""The ranks of a gang share one placement group, which is a leftover when the last one ends."""

from __future__ import annotations

from typing import Any

import pytest

from providers.base import CapacityType, LeftoverKind, RejectedError
from tests.clouds.aws.serving import StandIn
from tests.providers.aws.conftest import Rented

GANG: dict[str, Any] = {"interconnect": "efa", "instance_type": "p5.48xlarge"}


def launched(rented: Rented, name: str) -> list[str]:
    cloud = rented.cloud()
    for rank in range(2):
        cloud.launch(rented.request(f"{name}-r{rank}", gang=f"spotd-{name}", **GANG))
    return [machine.instance_id for machine in cloud.list()]


@pytest.mark.req("ELA-08")
def test_ranks_share_one_and_it_goes_after_the_last_of_them(rented: Rented) -> None:
    machines = launched(rented, "pair")
    assert rented.actions("CreatePlacementGroup", "RunInstances") == [
        "CreatePlacementGroup",
        "RunInstances",
        "CreatePlacementGroup",
        "RunInstances",
    ]
    received = [item.body for item in rented.aws.ec2.seen if item.action == "RunInstances"]
    assert {body["Placement.GroupName"] for body in received} == {"spotd-pair"}
    cloud = rented.cloud()
    assert cloud.leftovers() == []
    with pytest.raises(RejectedError, match="InUse"):
        cloud.discard("us-east-1/spotd-pair")
    cloud.terminate(machines[0])
    assert cloud.leftovers() == []
    cloud.terminate(machines[1])
    [left] = cloud.leftovers()
    assert (left.leftover_id, left.kind) == ("us-east-1/spotd-pair", LeftoverKind.GROUP)
    # The sweep asks the record by the token: that of the rank that came first.
    assert left.tags["spotd-token"] == rented.request("pair-r0").tags["spotd-token"]
    cloud.discard(left.leftover_id)
    assert cloud.leftovers() == []


@pytest.mark.parametrize("capacity", [CapacityType.RESERVED, CapacityType.BLOCK])
def test_reserved_capacity_lies_where_it_lies(rented: Rented, capacity: CapacityType) -> None:
    held = {"capacity_type": capacity, "reservation": "cr-1", "gang": "spotd-held"}
    rented.cloud().launch(rented.request("held", **GANG, **held))
    assert rented.actions("CreatePlacementGroup") == []
    [body] = [item.body for item in rented.aws.ec2.seen if item.action == "RunInstances"]
    assert "Placement.GroupName" not in body
    assert body["NetworkInterface.32.InterfaceType"] == "efa-only"


def test_a_group_of_another_region_is_another(rented: Rented, aws: StandIn) -> None:
    for region in ("us-east-1", "us-west-2"):
        where = {"region": region, "zone": f"{region}a", "gang": "spotd-both"}
        rented.cloud().launch(rented.request(f"both-{region}", **GANG, **where))
    result = {region for region, name in aws.ec2.groups.tags if name == "spotd-both"}
    assert result == {"us-east-1", "us-west-2"}
