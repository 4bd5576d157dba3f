"""The same as the steps of setup.py, for Terraform with Azure's provider."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from providers.azure.setup import (
    EXCHANGE,
    HOLDERS,
    blocks,
    federate,
    group_of,
    ident_of,
    login,
    role_documents,
    rules,
    subscription_of,
    trusted,
)
from providers.federated_stores import output
from providers.iam.hcl import Raw, block, label_of
from providers.iam.policy import NODE
from providers.iam.setup import SetupFacts

_HEAD = """\
# What spotd needs in this subscription: `terraform init`, and `terraform apply`.
terraform {
  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = ">= 4.0"
    }
  }
}
"""
_GROUP = {"resource_group_name": Raw("azurerm_resource_group.spotd.name")}


def terraform(facts: SetupFacts) -> str:
    """A root module."""
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
    for cloud, (issuer, subject) in trusted(facts).items():
        told: dict[str, Any] = {"name": cloud, **_GROUP, "issuer": issuer, "subject": subject}
        identity = Raw(f"azurerm_user_assigned_identity.{NODE}.id")
        told |= {"audience": [EXCHANGE], "parent_id": identity}
        labels = ["azurerm_federated_identity_credential", cloud]
        parts.append(block("resource", labels, told))
    if facts.trusts:
        whose = f"azurerm_user_assigned_identity.{NODE}"
        names = {"TENANT": f"{whose}.tenant_id", "CLIENT": f"{whose}.client_id"}
        parts.append(output(facts.policy, federate(facts), names))
    return "\n".join(parts)


def _network(facts: SetupFacts, region: str, addresses: tuple[str, str, str]) -> Iterator[str]:
    label, here = label_of(region), {"location": region, **_GROUP}
    network = {"name": f"spotd-{region}", "address_space": [addresses[0]]}
    yield block("resource", ["azurerm_virtual_network", label], network | here)
    for subnet, source in login(facts, addresses).items():
        own = addresses[1] if subnet == "nodes" else addresses[2]
        name = f"spotd-{region}" if subnet == "nodes" else f"spotd-{subnet}-{region}"
        whose = f"{label}_{subnet}"
        firewall = {"name": name, **here, "security_rule": _rules(source, own)}
        yield block("resource", ["azurerm_network_security_group", whose], firewall)
        body: dict[str, Any] = {
            "name": subnet,
            **_GROUP,
            "virtual_network_name": Raw(f"azurerm_virtual_network.{label}.name"),
            "address_prefixes": [own],
        }
        if facts.network != "public":
            body["service_endpoints"] = ["Microsoft.Storage"]
        yield block("resource", ["azurerm_subnet", whose], body)
        joined = {
            "subnet_id": Raw(f"azurerm_subnet.{whose}.id"),
            "network_security_group_id": Raw(f"azurerm_network_security_group.{whose}.id"),
        }
        yield block(
            "resource", ["azurerm_subnet_network_security_group_association", whose], joined
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
    where = Raw("azurerm_resource_group.spotd.id") if in_group else scope
    permissions = {"actions": document["Actions"], "data_actions": document["DataActions"]}
    definition = {
        "role_definition_id": ident_of(scope, name),
        "name": name,
        "description": document["Description"],
        "scope": where,
        "assignable_scopes": [where],
        "permissions": [{key: value for key, value in permissions.items() if value}],
    }
    yield block("resource", ["azurerm_role_definition", role], definition)
    body: dict[str, Any] = {
        "name": ident_of(scope, name, holder),
        "scope": where,
        "role_definition_id": Raw(f"azurerm_role_definition.{role}.role_definition_resource_id"),
        "principal_id": Raw(f"azurerm_user_assigned_identity.{holder}.principal_id"),
        "principal_type": "ServicePrincipal",
    }
    if "AssignmentCondition" in document:
        body |= {"condition_version": "2.0", "condition": document["AssignmentCondition"]}
    yield block("resource", ["azurerm_role_assignment", role], body)
