"""Role definitions for Azure: of the control box, of the reaper, and of the machines.

What they apply to is their scope: the deployment's resource group, which must be its own, because
Azure's roles cannot ask for tags. What Azure tells for a whole subscription only, the control box
may read there by a role of its own ("market"), which changes nothing. Users cannot write deny
assignments, so what a machine must not do is what its role does not have; its identity gets no
other role. Actions and attributes: Azure's resource provider operations, and its format of role
assignment conditions.
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.iam.policy import CONTROL, NODE, REAPER, Document, Place, PolicyFacts

_MACHINES = "Microsoft.Compute/virtualMachines"
MARKET = "market"
_LOOK = (
    f"{_MACHINES}/read",
    f"{_MACHINES}/instanceView/read",
    f"{_MACHINES}/retrieveBootDiagnosticsData/action",  # what a console says
)
# Sizes, quotas, placement scores, how far an operation is, and the run time statuses of machines.
_LOOK_EVERYWHERE = (
    "Microsoft.Compute/skus/read",
    "Microsoft.Compute/locations/usages/read",
    "Microsoft.Compute/locations/operations/read",
    f"{_MACHINES}/read",
    "Microsoft.Compute/locations/placementScores/generate/action",
    "Microsoft.ResourceGraph/resources/read",  # eviction rates
)
# Machines out of capacity reservation groups that the configuration names.
_GROUPS = "Microsoft.Compute/capacityReservationGroups"
_RESERVED = (f"{_GROUPS}/read", f"{_GROUPS}/capacityReservations/read", f"{_GROUPS}/deploy/action")
# For `spotctl doctor`: what we may, and what there is for machines.
_EXAMINE = (
    "Microsoft.Authorization/permissions/read",
    "Microsoft.Network/virtualNetworks/subnets/read",
    "Microsoft.Network/networkSecurityGroups/read",
)
_EXAMINE_EVERYWHERE = (
    "Microsoft.Resources/subscriptions/read",
    "Microsoft.Authorization/permissions/read",
    "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read",
)
_MAKE = (
    f"{_MACHINES}/write",
    "Microsoft.Compute/disks/write",
    "Microsoft.Network/networkInterfaces/write",
    "Microsoft.Network/networkInterfaces/read",
    "Microsoft.Network/networkInterfaces/join/action",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
    "Microsoft.Network/publicIPAddresses/write",
    "Microsoft.Network/publicIPAddresses/read",
    "Microsoft.Network/publicIPAddresses/join/action",
    "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
    # The ranks of a gang, joined by InfiniBand.
    "Microsoft.Compute/availabilitySets/write",
    "Microsoft.Compute/availabilitySets/read",
)
# Cards and addresses are read as they are made (above); Azure refuses to delete what is in use.
_LOOK_FOR_LEFTOVERS = ("Microsoft.Compute/disks/read",)
# A machine with what hangs on it, and what machines left behind.
_END = (
    f"{_MACHINES}/delete",
    "Microsoft.Compute/disks/delete",
    "Microsoft.Network/networkInterfaces/delete",
    "Microsoft.Network/publicIPAddresses/delete",
)
_REHEARSE = (f"{_MACHINES}/simulateEviction/action",)  # for `spotctl doctor --live --gpu`
_DISCARD = ("Microsoft.Compute/availabilitySets/delete",)
# Images of machines, by snapshots of their disks, which are read as if for somebody outside.
_IMAGES = (
    "Microsoft.Compute/images/read",
    "Microsoft.Compute/images/write",
    "Microsoft.Compute/images/delete",
    "Microsoft.Compute/disks/beginGetAccess/action",
    "Microsoft.Compute/snapshots/read",
    "Microsoft.Compute/snapshots/write",
    "Microsoft.Compute/snapshots/delete",
)
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_OBJECTS = (f"{_BLOBS}/read", f"{_BLOBS}/write", f"{_BLOBS}/delete", f"{_BLOBS}/add/action")


def policies(facts: PolicyFacts) -> dict[str, Document]:
    """Name -> role definition, with the condition of its assignment where it has data actions."""
    control, node = facts.own_places("az"), facts.node_places("az")
    look = (*_LOOK, *_LOOK_FOR_LEFTOVERS, *_EXAMINE)
    may = (*look, *_RESERVED, *_MAKE, *_END, *_DISCARD, *_IMAGES, *_REHEARSE)
    return {
        facts.name(CONTROL): _role(facts, CONTROL, may, control),
        facts.name(MARKET): _role(
            facts, MARKET, (*_LOOK_EVERYWHERE, *_EXAMINE_EVERYWHERE), [], everywhere=True
        ),
        facts.name(REAPER): _role(facts, REAPER, (f"{_MACHINES}/read", *_END), []),
        facts.name(NODE): _role(facts, NODE, (), node),
    }


def _role(
    facts: PolicyFacts,
    role: str,
    actions: Sequence[str],
    places: Sequence[Place],
    *,
    everywhere: bool = False,
) -> Document:
    account = facts.account
    scope = f"/subscriptions/{account.get('subscription_id', 'SUBSCRIPTION')}"
    if not everywhere:
        scope += f"/resourceGroups/{account.get('resource_group', 'GROUP')}"
    found: Document = {
        "Name": facts.name(role),
        "IsCustom": True,
        "Description": f"spotd deployment {facts.deployment}: {role}",
        "Actions": [*actions],
        "NotActions": [],
        "DataActions": [*_OBJECTS] if places else [],
        "NotDataActions": [],
        "AssignableScopes": [scope],
    }
    condition = " OR ".join(_below(place) for place in places)
    return found | ({"AssignmentCondition": condition} if condition else {})


def _below(place: Place) -> str:
    """Blobs of a container below a prefix."""
    container = "@Resource[Microsoft.Storage/storageAccounts/blobServices/containers:name]"
    path = f"@Resource[{_BLOBS}:path]"
    return f"({container} StringEquals '{place.bucket}' AND {path} StringLike '{place.prefix}*')"
