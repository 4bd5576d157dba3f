"""Render the set-up of setup.py for Terraform with Google's provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from providers.federated_stores import terraform_output
from providers.gcp.setup import (
    NETWORK,
    ROLES,
    WORKLOAD_IDENTITY_USER,
    blocks,
    federation_settings,
    grants,
    member_of,
    pool_of,
    project_of,
    rules,
    services,
    trusted_providers,
)
from providers.iam.hcl import Raw, block, label_of, module_head
from providers.iam.policy import NODE
from providers.iam.setup import SetupFacts

_HEAD = module_head("project", "google", "5.0")


def terraform(facts: SetupFacts) -> str:
    """Return a root module."""
    project = project_of(facts)
    parts = [_HEAD, block("provider", ["google"], {"project": project})]
    for name in services(facts):
        body = {"service": name, "disable_on_destroy": False}
        parts.append(block("resource", ["google_project_service", _service(name)], body))
    parts.extend(_network(facts))
    for role in ROLES:
        parts.extend(_account(project, facts, role))
    if facts.trusts:
        parts.extend(_trusts(facts))
    return "\n".join(parts)


def _service(name: str) -> str:
    return name.partition(".")[0]


def _network(facts: SetupFacts) -> Iterator[str]:
    body = {
        "name": NETWORK,
        "auto_create_subnetworks": False,
        "depends_on": [Raw("google_project_service.compute")],
    }
    yield block("resource", ["google_compute_network", NETWORK], body)
    network = {"network": Raw(f"google_compute_network.{NETWORK}.id")}
    for region, addresses in blocks(facts.policy.regions).items():
        subnet = {
            "name": NETWORK,
            "region": region,
            "ip_cidr_range": addresses,
            "private_ip_google_access": True,
        }
        yield block("resource", ["google_compute_subnetwork", label_of(region)], subnet | network)
    for name, rule in rules(facts).items():
        yield block(
            "resource",
            ["google_compute_firewall", label_of(name)],
            {"name": name, "direction": "INGRESS", **network, **_rule(rule)},
        )


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "sourceRanges": "source_ranges",
        "sourceTags": "source_tags",
        "targetTags": "target_tags",
    }
    allowed = [
        {
            "protocol": entry["IPProtocol"],
            **({"ports": entry["ports"]} if "ports" in entry else {}),
        }
        for entry in rule["allowed"]
    ]
    return {names[key]: rule[key] for key in names if key in rule} | {"allow": allowed}


def _trusts(facts: SetupFacts) -> Iterator[str]:
    pool = {"workload_identity_pool_id": pool_of(facts)}
    yield block("resource", ["google_iam_workload_identity_pool", "spotd"], pool)
    pool_resource = "google_iam_workload_identity_pool.spotd"
    label = label_of(facts.policy.name(NODE))
    for cloud, (name, settings, principal) in trusted_providers(facts).items():
        body: dict[str, Any] = {
            "workload_identity_pool_id": Raw(f"{pool_resource}.workload_identity_pool_id"),
            "workload_identity_pool_provider_id": name,
        }
        if "aws" in settings:
            body["aws"] = [{"account_id": settings["aws"]["accountId"]}]
        else:
            oidc = settings["oidc"]
            body["attribute_mapping"] = settings["attributeMapping"]
            body["oidc"] = [
                {"issuer_uri": oidc["issuerUri"], "allowed_audiences": oidc["allowedAudiences"]}
            ]
        yield block("resource", ["google_iam_workload_identity_pool_provider", cloud], body)
        member = {
            "service_account_id": Raw(f"google_service_account.{label}.name"),
            "role": WORKLOAD_IDENTITY_USER,
            "member": member_of(f"${{{pool_resource}.name}}", principal),
        }
        yield block("resource", ["google_service_account_iam_member", cloud], member)
    yield terraform_output(
        facts.policy, federation_settings(facts), {"POOL": f"{pool_resource}.name"}
    )


def _account(project: str, facts: SetupFacts, role: str) -> Iterator[str]:
    name = facts.policy.name(role)
    label = label_of(name)
    body: dict[str, Any] = {"account_id": name, "display_name": name}
    yield block("resource", ["google_service_account", label], body)
    for role_id, grant in grants(facts, role).items():
        body = {
            "role_id": role_id,
            "title": role_id,
            "stage": "GA",
            "permissions": grant["includedPermissions"],
        }
        yield block("resource", ["google_project_iam_custom_role", role_id], body)
        member = Raw(f"google_service_account.{label}.member")
        custom_role = Raw(f"google_project_iam_custom_role.{role_id}.id")
        body = {"project": project, "role": custom_role, "member": member}
        if "condition" in grant:
            body["condition"] = [{"title": role_id, **grant["condition"]}]
        yield block("resource", ["google_project_iam_member", role_id], body)
