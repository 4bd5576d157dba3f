"""Roles and bindings for Google Cloud: of the control box, of the reaper, and of the machines.

Each document has a custom role (what it may do), bindings of it with a condition (on what), and for
the machines a deny policy, which no binding made later overrides. Permissions and attributes of
conditions: Google's IAM permission and condition references. Conditions cannot ask for labels: give
each deployment a project of its own where others run machines called "spotd-..." too.
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.iam.policy import CONTROL, NAME_PREFIX, NODE, REAPER, Document, Place, PolicyFacts

_LIST = (  # machines, and what became of creates
    "compute.instances.list",
    "compute.globalOperations.list",
    "compute.zoneOperations.list",
)
_LOOK = (
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
# Quotas, image and network, before anything needs them.
_EXAMINE = (
    "cloudquotas.quotas.get",
    "compute.subnetworks.get",
    "compute.firewalls.list",
    "compute.images.get",
    "compute.images.getFromFamily",
)
_MAKE = (
    "compute.instances.create",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.instances.setTags",
    "compute.disks.create",
    "compute.disks.setLabels",
)
# One by one: what is there under a name that is taken, the host key that it published, and what the
# console of one that did not come up says.
_SEE = (
    "compute.instances.get",
    "compute.instances.getGuestAttributes",
    "compute.instances.getSerialPortOutput",
)
_USE = (
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.images.useReadOnly",
)
_END = ("compute.instances.delete",)
# For `spotctl doctor --live --gpu`.
_REHEARSE = ("compute.instances.simulateMaintenanceEvent",)
# A disk is all that a machine can leave behind: its card is a part of it, and so is its address,
# because nobody here may reserve one. Google refuses to delete a disk that a machine uses.
_DISCARD = ("compute.disks.delete",)
# What puts the machines of a gang close to each other.
_GROUP = (
    "compute.resourcePolicies.create",
    "compute.resourcePolicies.get",
    "compute.resourcePolicies.use",
    "compute.resourcePolicies.delete",
)
# Images of machines, and the disks that they are read from; to see them is among _EXAMINE.
_IMAGES = ("compute.images.create", "compute.images.setLabels", "compute.images.delete")
_READ = ("compute.disks.useReadOnly",)
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
    """Name -> role, bindings and, of the machines, what is denied."""
    account = facts.account.get("project", "PROJECT")
    nodes = f"serviceAccount:{facts.name(NODE)}@{account}.iam.gserviceaccount.com"
    as_node = f"projects/{account}/serviceAccounts/{nodes.removeprefix('serviceAccount:')}"
    control = [
        _grant((*_LOOK, *_EXAMINE), ""),
        _grant((*_MAKE, *_SEE, *_END, *_DISCARD, *_READ, *_REHEARSE), _machines(facts)),
        _grant(_IMAGES, _OWN_IMAGES),
        _grant(_USE, ""),
        _grant(_GROUP, _policies()),
        _grant(("iam.serviceAccounts.actAs",), f'resource.name == "{as_node}"'),
        *(_grant(_OBJECTS, below(place)) for place in facts.own_places("gs")),
    ]
    reaper = [
        _grant(_LIST, ""),
        _grant(_END, _machines(facts)),
    ]
    node = [_grant(_OBJECTS, below(place)) for place in facts.node_places("gs")]
    denied = {"deniedPrincipals": [nodes], "deniedPermissions": [*_NEVER_ON_NODES]}
    return {
        facts.name(CONTROL): {"grants": control},
        facts.name(REAPER): {"grants": reaper},
        facts.name(NODE): {"grants": node, "deny": [denied]},
    }


def _grant(permissions: Sequence[str], condition: str) -> Document:
    found: Document = {"includedPermissions": [*permissions]}
    return found | ({"condition": {"expression": condition}} if condition else {})


def _machines(facts: PolicyFacts) -> str:
    """Machines (and their disks) by name, in the zones of the regions."""
    name = 'resource.name.extract("/zones/{zone}/")'
    zones = " || ".join(f'{name}.startsWith("{region}-")' for region in facts.regions)
    ours = " || ".join(
        f'resource.name.extract("/{kind}/{{name}}").startsWith("{NAME_PREFIX}")'
        for kind in ("instances", "disks")
    )
    return f"({ours}) && ({zones})" if "*" not in facts.regions else f"({ours})"


def _policies() -> str:
    """Placement policies by name."""
    return f'resource.name.extract("/resourcePolicies/{{name}}").startsWith("{NAME_PREFIX}")'


# By name: they are in no region.
_OWN_IMAGES = f'resource.name.extract("/images/{{name}}").startsWith("{NAME_PREFIX}")'


def below(place: Place) -> str:
    """Objects below a prefix, and the listing of it: where nothing is listed the attribute is "",
    which a prefix of "" would be true of in every bucket."""
    bucket = f"projects/_/buckets/{place.bucket}"
    listed = 'api.getAttribute("storage.googleapis.com/objectListPrefix", "")'
    listing = f'resource.name == "{bucket}" && {listed}.startsWith("{place.prefix}")'
    return f'resource.name.startsWith("{bucket}/objects/{place.prefix}") || ({listing})'
