"""The roles of providers/azure/policy.py allow every call of the adapter, as the stand-in received
it, and contain nothing unused except the actions named here."""

from __future__ import annotations

import re

from providers.azure.policy import policies
from providers.base import CapacityType, OfferRequest
from providers.iam.policy import PolicyFacts
from providers.readiness import need_of
from tests.clouds.azure.arm import SUBSCRIPTION, Request
from tests.clouds.azure.catalog import H100
from tests.clouds.azure.held import Reservation
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.providers.azure.rig import again, provider, request
from tests.providers.azure.test_market import GROUP
from tests.providers.evaluate import azure_allows

_VERBS = {"GET": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}
# What Azure asks for besides the call itself: for what a PUT of a machine makes, joins and assigns,
# and what its end takes along.
BESIDES = {
    "Microsoft.Compute/disks/write",
    "Microsoft.Network/networkInterfaces/write",
    "Microsoft.Network/networkInterfaces/join/action",
    "Microsoft.Network/publicIPAddresses/write",
    "Microsoft.Network/publicIPAddresses/join/action",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
    "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
    "Microsoft.Compute/virtualMachines/instanceView/read",
    "Microsoft.Compute/capacityReservationGroups/deploy/action",
    "Microsoft.Compute/disks/beginGetAccess/action",  # of the disk that a snapshot is taken of
}


def needed(call: Request) -> tuple[str, str]:
    """Return (action, scope) of a call."""
    if call.call == "GET subscriptions":
        return "Microsoft.Resources/subscriptions/read", f"{call.path}/"
    if call.path.startswith("/providers/"):
        scope = f"/subscriptions/{call.body['subscriptions'][0]}/providers/x"
        return f"{call.path.removeprefix('/providers/')}/read", scope
    result = re.fullmatch(
        r"(/subscriptions/[^/]+(?:/resourceGroups/[^/]+)?)/providers/(.+)", call.path
    )
    assert result, call.path
    parts = result[2].split("/")
    kind = "/".join(parts[:2])
    if len(parts) > 3 and parts[1] == "capacityReservationGroups":
        kind += f"/{parts[3]}"
    if "/publishers/" in call.path:
        kind = "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions"
    elif "/subnets/" in call.path:
        kind = f"{kind}/subnets"
    elif parts[1] == "locations":
        kind = "/".join((*parts[:2], parts[3]))
    if call.method == "POST":
        return f"{kind}/{parts[-1]}/action", f"{result[1]}/providers/x"
    return f"{kind}/{_VERBS[call.method]}", f"{result[1]}/providers/x"


def test_every_call_has_its_right_and_every_right_its_call(azure: StandIn) -> None:
    cloud = provider(azure)
    resource_id = GROUP.format(cloud._group)
    azure.arm.held.add(resource_id, Reservation("one", "eastus", "1", H100, 1))
    cloud = again(cloud, azure, reservations={resource_id: 0})
    cloud.check_readiness([need_of(offer) for offer in cloud.offers(OfferRequest())])
    cloud.launch(request("spot"))
    plain = {"capacity_type": CapacityType.ON_DEMAND, "zone": "eastus-any"}
    cloud.launch(request("gang", gang="g", interconnect="infiniband", **plain))
    cloud.list()
    cloud.read_serial_console("spot")
    again(cloud, azure, network="private").list()
    for _ in range(2):
        image = cloud.make_image("spot", "spotd-baked", {})
    cloud.remove_image(image.image_id)
    cloud.renew("spot", 1_950_000_000_000_000)
    azure.arm.faults.arm(Fault("leftovers", ("DELETE virtualMachines",)))
    cloud.terminate("gang")
    cloud.interrupt("spot")
    cloud.notices()
    for left in cloud.leftovers():
        cloud.discard(left.leftover_id)
    account = {"subscription_id": SUBSCRIPTION, "resource_group": cloud._group}
    roles = policies(PolicyFacts("d0", ("eastus",), "az://a/b", "az://c/d", account=account))
    control, market = roles["spotd-control-d0"], roles["spotd-market-d0"]
    calls = [
        call for call in azure.arm.calls if call.path.startswith(("/subscriptions/", "/providers/"))
    ]
    received = {needed(call) for call in calls}
    assert len(received) > 12
    lacking = [
        (action, scope)
        for action, scope in received
        if not azure_allows(control, action, scope) and not azure_allows(market, action, scope)
    ]
    assert lacking == []
    used = {action for action, _ in received}
    assert {*control["Actions"], *market["Actions"]} - used == BESIDES
