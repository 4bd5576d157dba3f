"""Role definitions for Azure: of the control box, of spot-reaper, and of the machines.

Their scope is the deployment's own resource group, because Azure's roles cannot use tags. For what
Azure reports only for a whole subscription, the control box has a read-only role there ("market").
Users cannot create deny assignments, so machines are limited by what their role does not contain;
their identity gets no other role. Sources of actions and attributes: Azure's resource provider
operations, and its format of role assignment conditions.
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.iam.policy import CONTROL, NODE, REAPER, Document, PolicyFacts, StorePrefix

_MACHINES = "Microsoft.Compute/virtualMachines"
MARKET = "market"
_READ = (
    f"{_MACHINES}/read",
    f"{_MACHINES}/instanceView/read",
    f"{_MACHINES}/retrieveBootDiagnosticsData/action",  # serial console
)
# Sizes, quotas, placement scores, operations, and the run-time status of machines.
_READ_SUBSCRIPTION = (
    "Microsoft.Compute/skus/read",
    "Microsoft.Compute/locations/usages/read",
    "Microsoft.Compute/locations/operations/read",
    f"{_MACHINES}/read",
    "Microsoft.Compute/locations/placementScores/generate/action",
    "Microsoft.ResourceGraph/resources/read",  # eviction rates
)
# Use of the capacity reservation groups that the configuration names.
_GROUPS = "Microsoft.Compute/capacityReservationGroups"
_USE_RESERVATIONS = (
    f"{_GROUPS}/read",
    f"{_GROUPS}/capacityReservations/read",
    f"{_GROUPS}/deploy/action",
)
# For `spotctl doctor`: permissions and prerequisites.
_CHECK_READINESS = (
    "Microsoft.Authorization/permissions/read",
    "Microsoft.Network/virtualNetworks/subnets/read",
    "Microsoft.Network/networkSecurityGroups/read",
)
_CHECK_READINESS_SUBSCRIPTION = (
    "Microsoft.Resources/subscriptions/read",
    "Microsoft.Authorization/permissions/read",
    "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read",
)
_CREATE = (
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
    # Gangs with InfiniBand.
    "Microsoft.Compute/availabilitySets/write",
    "Microsoft.Compute/availabilitySets/read",
)
# Reading interfaces and addresses is in _CREATE. Azure refuses to delete attached resources.
_READ_LEFTOVERS = ("Microsoft.Compute/disks/read",)
# A machine with its resources, and leftovers.
_TERMINATE = (
    f"{_MACHINES}/delete",
    "Microsoft.Compute/disks/delete",
    "Microsoft.Network/networkInterfaces/delete",
    "Microsoft.Network/publicIPAddresses/delete",
)
_INTERRUPT = (f"{_MACHINES}/simulateEviction/action",)  # for `spotctl doctor --live --gpu`
_DISCARD = ("Microsoft.Compute/availabilitySets/delete",)
# Images of machines, by snapshots of their disks, which need export access to the disk.
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
    """Return name -> role definition, with the condition of its assignment where it has data
    actions."""
    control, node = facts.control_prefixes("az"), facts.node_prefixes("az")
    read = (*_READ, *_READ_LEFTOVERS, *_CHECK_READINESS)
    actions = (*read, *_USE_RESERVATIONS, *_CREATE, *_TERMINATE, *_DISCARD, *_IMAGES, *_INTERRUPT)
    return {
        facts.name(CONTROL): _role(facts, CONTROL, actions, control),
        facts.name(MARKET): _role(
            facts,
            MARKET,
            (*_READ_SUBSCRIPTION, *_CHECK_READINESS_SUBSCRIPTION),
            [],
            subscription_wide=True,
        ),
        facts.name(REAPER): _role(facts, REAPER, (f"{_MACHINES}/read", *_TERMINATE), []),
        facts.name(NODE): _role(facts, NODE, (), node),
    }


def _role(
    facts: PolicyFacts,
    role: str,
    actions: Sequence[str],
    prefixes: Sequence[StorePrefix],
    *,
    subscription_wide: bool = False,
) -> Document:
    account = facts.account
    scope = f"/subscriptions/{account.get('subscription_id', 'SUBSCRIPTION')}"
    if not subscription_wide:
        scope += f"/resourceGroups/{account.get('resource_group', 'GROUP')}"
    definition: Document = {
        "Name": facts.name(role),
        "IsCustom": True,
        "Description": f"spotd deployment {facts.deployment}: {role}",
        "Actions": [*actions],
        "NotActions": [],
        "DataActions": [*_OBJECTS] if prefixes else [],
        "NotDataActions": [],
        "AssignableScopes": [scope],
    }
    condition = " OR ".join(_prefix_condition(prefix) for prefix in prefixes)
    return definition | ({"AssignmentCondition": condition} if condition else {})


def _prefix_condition(prefix: StorePrefix) -> str:
    """Limit to blobs of a container below a prefix."""
    container = "@Resource[Microsoft.Storage/storageAccounts/blobServices/containers:name]"
    path = f"@Resource[{_BLOBS}:path]"
    return f"({container} StringEquals '{prefix.bucket}' AND {path} StringLike '{prefix.prefix}*')"
