"""The control box's policy covers every call in an adapter's source, whether a test makes it or
not.

`test_rights.py` of each cloud covers call arguments, and that every permission is used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import pytest
from botocore import xform_name

from providers.aws.policy import policies as aws
from providers.azure.policy import policies as azure
from providers.gcp.policy import policies as gcp
from providers.iam.policy import PolicyFacts

ROOT = Path(__file__).parents[2] / "providers"
ACCOUNT = {"queue": "q", "lend": "arn:aws:iam::1:role/r", "project": "lab"}
FACTS = PolicyFacts("d0", ("us-east-1",), "s3://a/b", "s3://c/d", account=ACCOUNT)
# Run by who sets an account up, with rights of their own.
SETUP = {"setup.py", "script.py", "terraform.py", "apply.py"}

SERVICES = {
    "ec2": "ec2",
    "sqs": "sqs",
    "ssm": "ssm",
    "sts": "sts",
    "pricing": "pricing",
    "service-quotas": "servicequotas",
}
# Of everybody, of a user's keys instead of a role, and what is not called as its right is.
NO_RIGHT = {"sts:GetCallerIdentity", "sts:GetFederationToken"}
CALLED_OTHERWISE = {"sqs:DeleteMessageBatch": "sqs:DeleteMessage"}

VERBS = {  # of Google's clients; any other is its right's own name
    "insert_unary": "create",
    "delete_unary": "delete",
    "set_labels_unary": "setLabels",
    "simulate_maintenance_event_unary": "simulateMaintenanceEvent",
    "aggregated": "list",
    "list_filtered": "list",
    "rows": "list",
    "_get": "get",
}
AZURE = {
    "virtual_machines": "Compute/virtualMachines",
    "disks": "Compute/disks",
    "availability_sets": "Compute/availabilitySets",
    "capacity_reservations": "Compute/capacityReservationGroups/capacityReservations",
    "capacity_reservation_groups": "Compute/capacityReservationGroups",
    "network_interfaces": "Network/networkInterfaces",
    "public_ip_addresses": "Network/publicIPAddresses",
    "network_security_groups": "Network/networkSecurityGroups",
    "subnets": "Network/virtualNetworks/subnets",
    "resource_skus": "Compute/skus",
    "usage": "Compute/locations/usages",
    "virtual_machine_images": ("Compute/locations/publishers/artifacttypes/offers/skus/versions"),
}
AZURE_VERBS = {
    "begin_create_or_update": "write",
    "create_or_update": "write",
    "begin_update": "write",
    "begin_delete": "delete",
    "delete": "delete",
    "retrieve_boot_diagnostics_data": "retrieveBootDiagnosticsData/action",
}


def sources(cloud: str) -> Iterator[ast.AST]:
    for path in sorted((ROOT / cloud).glob("*.py")):
        if path.name not in SETUP:
            yield from ast.walk(ast.parse(path.read_text()))


def test_aws() -> None:
    """Calls are strings, anywhere in the source."""
    session = botocore.session.get_session()
    known = {
        xform_name(operation): f"{prefix}:{operation}"
        for service, prefix in SERVICES.items()
        for operation in session.get_service_model(service).operation_names
    }
    message = {node.value for node in sources("aws") if isinstance(node, ast.Constant)}
    called = {known[word] for word in message if isinstance(word, str) and word in known}
    assert len(called) > 30
    statements = aws(FACTS)["spotd-control-d0"]["Statement"]
    allowed = {action for statement in statements for action in statement["Action"]}
    assert {CALLED_OTHERWISE.get(item, item) for item in called} - allowed == NO_RIGHT


def _gcp_calls() -> Iterator[str]:
    """`call("Disks", "get", ...)`, and `aggregated("Disks", ...)` and similar."""
    from google.cloud import compute_v1  # seconds, which no other worker has to spend

    for node in sources("gcp"):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        message = [str(arg.value) if isinstance(arg, ast.Constant) else "" for arg in node.args[:2]]
        thing, output = [*message, "", ""][:2]
        if not thing or not hasattr(compute_v1, f"{thing}Client"):
            continue
        collection = f"{thing[0].lower()}{thing[1:]}"
        name = node.func.attr
        method = name if name in VERBS else output
        if method:  # else one of two that `readiness.py` chooses from; both are in _CHECK_READINESS
            first, *rest = VERBS.get(method, method).split("_")
            yield f"compute.{collection}.{first}{''.join(word.capitalize() for word in rest)}"


@pytest.mark.xdist_group("gcp")
def test_gcp() -> None:
    called = {*_gcp_calls()}
    assert len(called) > 15
    grants = gcp(FACTS)["spotd-control-d0"]["grants"]
    allowed = {right for grant in grants for right in grant["includedPermissions"]}
    assert called - allowed == set()


def _azure_calls() -> Iterator[str]:
    """`c.disks.list(...)` of a variable that holds a client; by name where the name is a string."""
    for node in sources("azure"):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        if isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name):
            if owner.value.id in ("c", "client"):
                yield f"Microsoft.{AZURE[owner.attr]}/{AZURE_VERBS.get(node.attr, 'read')}"
        elif node.attr == "begin_delete":  # of what leftovers.py has a table of
            for kind in ("disks", "network_interfaces", "public_ip_addresses"):
                yield f"Microsoft.{AZURE[kind]}/delete"


def test_azure() -> None:
    called = {*_azure_calls()}
    assert len(called) > 15
    roles = azure(FACTS)
    allowed = {*roles["spotd-control-d0"]["Actions"], *roles["spotd-market-d0"]["Actions"]}
    assert called - allowed == set()


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_what_is_read_is_the_adapter(cloud: str) -> None:
    """These tests would miss calls made in another way."""
    allowed = {"clients.py", "stores"}
    for path in (ROOT / cloud).glob("*.py"):
        if path.name not in allowed:
            text = path.read_text()
            assert "create_client" not in text
            assert "compute_v1." not in text
            assert "HttpRequest(" not in text
