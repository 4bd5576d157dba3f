"""Roles and bindings for Google Cloud: of the control box, of spot-reaper, and of the machines.

Each document has a custom role (the permissions), conditional bindings of it (the resources), and
for the machines a deny policy, which no later binding overrides. Permissions and condition
attributes: Google's IAM permission and condition references. Conditions cannot use labels: give
each deployment a project of its own where others also run machines called "spotd-...".
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.iam.policy import (
    CONTROL,
    NAME_PREFIX,
    NODE,
    REAPER,
    Document,
    PolicyFacts,
    StorePrefix,
)

_LIST = (  # machines and operations
    "compute.instances.list",
    "compute.globalOperations.list",
    "compute.zoneOperations.list",
)
_READ_ALL = (
    *_LIST,
    "compute.zoneOperations.get",
    "compute.disks.list",
    "compute.machineTypes.list",
    "compute.reservations.list",
    "compute.advice.capacityHistory",
    "compute.images.list",
    "compute.advice.capacity",
    "compute.resourcePolicies.list",
)
# For the readiness checks: quotas, image and network.
_CHECK_READINESS = (
    "cloudquotas.quotas.get",
    "compute.subnetworks.get",
    "compute.firewalls.list",
    "compute.images.get",
    "compute.images.getFromFamily",
)
_CREATE = (
    "compute.instances.create",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.instances.setTags",
    "compute.disks.create",
    "compute.disks.setLabels",
)
# Reading a single machine: one with a conflicting name, its published host key, and its serial
# console.
_READ_MACHINE = (
    "compute.instances.get",
    "compute.instances.getGuestAttributes",
    "compute.instances.getSerialPortOutput",
)
_USE = (
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.images.useReadOnly",
)
_TERMINATE = ("compute.instances.delete",)
# For `spotctl doctor --live --gpu`.
_INTERRUPT = ("compute.instances.simulateMaintenanceEvent",)
# Images of machines, and the disks that they are read from (_CHECK_READINESS: reading images).
# to delete a disk that a machine uses.
_DISCARD = ("compute.disks.delete",)
# Placement policies of gangs.
_PLACEMENT = (
    "compute.resourcePolicies.create",
    "compute.resourcePolicies.get",
    "compute.resourcePolicies.use",
    "compute.resourcePolicies.delete",
)
# Images of machines, and the disks that they are read from. _CHECK_READINESS includes reading them.
_IMAGES = ("compute.images.create", "compute.images.setLabels", "compute.images.delete")
_READ_DISKS = ("compute.disks.useReadOnly",)
_OBJECTS = (
    "storage.objects.get",
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.list",
    "storage.multipartUploads.create",
)
_NEVER_ON_NODES = (
    "compute.googleapis.com/instances.create",
    "compute.googleapis.com/instances.delete",
    "compute.googleapis.com/instances.setMetadata",
    "compute.googleapis.com/instances.setIamPolicy",
    "iam.googleapis.com/serviceAccounts.actAs",
    "iam.googleapis.com/serviceAccountKeys.create",
    "iam.googleapis.com/serviceAccounts.getAccessToken",
    "iam.googleapis.com/roles.create",
    "cloudresourcemanager.googleapis.com/projects.setIamPolicy",
)


def policies(facts: PolicyFacts) -> dict[str, Document]:
    """Return name -> role and bindings, and for machines the denied permissions."""
    account = facts.account.get("project", "PROJECT")
    nodes = f"serviceAccount:{facts.name(NODE)}@{account}.iam.gserviceaccount.com"
    as_node = f"projects/{account}/serviceAccounts/{nodes.removeprefix('serviceAccount:')}"
    control = [
        _grant((*_READ_ALL, *_CHECK_READINESS), ""),
        _grant(
            (*_CREATE, *_READ_MACHINE, *_TERMINATE, *_DISCARD, *_READ_DISKS, *_INTERRUPT),
            _own_machines(facts),
        ),
        _grant(_IMAGES, _OWN_IMAGES),
        _grant(_USE, ""),
        _grant(_PLACEMENT, _own_policies()),
        _grant(("iam.serviceAccounts.actAs",), f'resource.name == "{as_node}"'),
        *(_grant(_OBJECTS, prefix_condition(prefix)) for prefix in facts.control_prefixes("gs")),
    ]
    reaper = [
        _grant(_LIST, ""),
        _grant(_TERMINATE, _own_machines(facts)),
    ]
    node = [_grant(_OBJECTS, prefix_condition(prefix)) for prefix in facts.node_prefixes("gs")]
    denied = {"deniedPrincipals": [nodes], "deniedPermissions": [*_NEVER_ON_NODES]}
    return {
        facts.name(CONTROL): {"grants": control},
        facts.name(REAPER): {"grants": reaper},
        facts.name(NODE): {"grants": node, "deny": [denied]},
    }


def _grant(permissions: Sequence[str], condition: str) -> Document:
    grant: Document = {"includedPermissions": [*permissions]}
    return grant | ({"condition": {"expression": condition}} if condition else {})


def _own_machines(facts: PolicyFacts) -> str:
    """Limit to machines and disks by name, in the zones of the regions."""
    name = 'resource.name.extract("/zones/{zone}/")'
    zones = " || ".join(f'{name}.startsWith("{region}-")' for region in facts.regions)
    own = " || ".join(
        f'resource.name.extract("/{kind}/{{name}}").startsWith("{NAME_PREFIX}")'
        for kind in ("instances", "disks")
    )
    return f"({own}) && ({zones})" if "*" not in facts.regions else f"({own})"


def _own_policies() -> str:
    """Limit to placement policies by name."""
    return f'resource.name.extract("/resourcePolicies/{{name}}").startsWith("{NAME_PREFIX}")'


# Limit to images by name: they are global.
_OWN_IMAGES = f'resource.name.extract("/images/{{name}}").startsWith("{NAME_PREFIX}")'


def prefix_condition(prefix: StorePrefix) -> str:
    """Limit to objects below a prefix, and to listing them.

    Outside a listing the attribute is "", which would match a prefix of "" in every bucket; so the
    bucket is checked too.
    """
    bucket = f"projects/_/buckets/{prefix.bucket}"
    list_prefix = 'api.getAttribute("storage.googleapis.com/objectListPrefix", "")'
    listing = f'resource.name == "{bucket}" && {list_prefix}.startsWith("{prefix.prefix}")'
    return f'resource.name.startsWith("{bucket}/objects/{prefix.prefix}") || ({listing})'
