"""Render the set-up of setup.py for Terraform with Azure's provider."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from providers.azure.setup import (
    EXCHANGE_AUDIENCE,
    HOLDERS,
    blocks,
    federation_settings,
    group_of,
    role_documents,
    rules,
    ssh_sources,
    stable_uuid,
    subscription_of,
    trusted_tokens,
)
from providers.federated_stores import terraform_output
from providers.iam.hcl import Raw, block, label_of, module_head
from providers.iam.policy import NODE
from providers.iam.setup import SetupFacts

_HEAD = module_head("subscription", "azurerm", "4.0")
_GROUP = {"resource_group_name": Raw("azurerm_resource_group.spotd.name")}


def terraform(facts: SetupFacts) -> str:
    """Return a root module."""
    home = {"location": facts.policy.regions[0]}
    provider = block("provider", ["azurerm"], {"subscription_id": subscription_of(facts)})
    provider = provider.replace("{\n", "{\n  features {}\n", 1)
    parts = [_HEAD, provider]
    group = {"name": group_of(facts), **home}
    parts.append(block("resource", ["azurerm_resource_group", "spotd"], group))
    for region, addresses in blocks(facts.policy.regions).items():
        parts.extend(_network(facts, region, addresses))
    for holder, roles in HOLDERS.items():
        body = {"name": facts.policy.name(holder), **_GROUP, **home}
        parts.append(block("resource", ["azurerm_user_assigned_identity", holder], body))
        for role in roles:
            parts.extend(_role(facts, holder, role))
    for cloud, (issuer, subject) in trusted_tokens(facts).items():
        credential: dict[str, Any] = {"name": cloud, **_GROUP, "issuer": issuer, "subject": subject}
        identity = Raw(f"azurerm_user_assigned_identity.{NODE}.id")
        credential |= {"audience": [EXCHANGE_AUDIENCE], "parent_id": identity}
        labels = ["azurerm_federated_identity_credential", cloud]
        parts.append(block("resource", labels, credential))
    if facts.trusts:
        identity_resource = f"azurerm_user_assigned_identity.{NODE}"
        names = {
            "TENANT": f"{identity_resource}.tenant_id",
            "CLIENT": f"{identity_resource}.client_id",
        }
        parts.append(terraform_output(facts.policy, federation_settings(facts), names))
    return "\n".join(parts)


def _network(facts: SetupFacts, region: str, addresses: tuple[str, str, str]) -> Iterator[str]:
    label, location_and_group = label_of(region), {"location": region, **_GROUP}
    network = {"name": f"spotd-{region}", "address_space": [addresses[0]]}
    yield block("resource", ["azurerm_virtual_network", label], network | location_and_group)
    for subnet, source in ssh_sources(facts, addresses).items():
        subnet_cidr = addresses[1] if subnet == "nodes" else addresses[2]
        name = f"spotd-{region}" if subnet == "nodes" else f"spotd-{subnet}-{region}"
        resource_label = f"{label}_{subnet}"
        firewall = {
            "name": name,
            **location_and_group,
            "security_rule": _rules(source, subnet_cidr),
        }
        yield block("resource", ["azurerm_network_security_group", resource_label], firewall)
        body: dict[str, Any] = {
            "name": subnet,
            **_GROUP,
            "virtual_network_name": Raw(f"azurerm_virtual_network.{label}.name"),
            "address_prefixes": [subnet_cidr],
        }
        if facts.network != "public":
            body["service_endpoints"] = ["Microsoft.Storage"]
        yield block("resource", ["azurerm_subnet", resource_label], body)
        association = {
            "subnet_id": Raw(f"azurerm_subnet.{resource_label}.id"),
            "network_security_group_id": Raw(f"azurerm_network_security_group.{resource_label}.id"),
        }
        yield block(
            "resource",
            ["azurerm_subnet_network_security_group_association", resource_label],
            association,
        )


def _rules(source: str, own: str) -> list[dict[str, Any]]:
    names = {
        "direction": "direction",
        "access": "access",
        "priority": "priority",
        "protocol": "protocol",
        "sourceAddressPrefix": "source_address_prefix",
        "sourcePortRange": "source_port_range",
        "destinationAddressPrefix": "destination_address_prefix",
        "destinationPortRange": "destination_port_range",
    }
    return [
        {"name": rule["name"], **{names[k]: value for k, value in rule["properties"].items()}}
        for rule in rules(source, own)
    ]


def _role(facts: SetupFacts, holder: str, role: str) -> Iterator[str]:
    document = role_documents(facts).get(role)
    if document is None:
        return
    scope, name = document["AssignableScopes"][0], document["Name"]
    in_group = "/resourceGroups/" in scope
    terraform_scope = Raw("azurerm_resource_group.spotd.id") if in_group else scope
    permissions = {"actions": document["Actions"], "data_actions": document["DataActions"]}
    definition = {
        "role_definition_id": stable_uuid(scope, name),
        "name": name,
        "description": document["Description"],
        "scope": terraform_scope,
        "assignable_scopes": [terraform_scope],
        "permissions": [{key: value for key, value in permissions.items() if value}],
    }
    yield block("resource", ["azurerm_role_definition", role], definition)
    body: dict[str, Any] = {
        "name": stable_uuid(scope, name, holder),
        "scope": terraform_scope,
        "role_definition_id": Raw(f"azurerm_role_definition.{role}.role_definition_resource_id"),
        "principal_id": Raw(f"azurerm_user_assigned_identity.{holder}.principal_id"),
        "principal_type": "ServicePrincipal",
    }
    if "AssignmentCondition" in document:
        body |= {"condition_version": "2.0", "condition": document["AssignmentCondition"]}
    yield block("resource", ["azurerm_role_assignment", role], body)
