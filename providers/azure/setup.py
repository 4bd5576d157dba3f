"""Set-up of an Azure subscription: a resource group of its own, a network in each region, three
identities and their roles. `spotctl init azure` prints or applies it.

`Call.operation` is an HTTP verb, `parameters` have "path", "version" and optionally "body". A PUT
creates a missing resource and is complete when the resource is provisioned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from providers.azure.policy import MARKET, policies
from providers.iam.policy import CONTROL, NODE, REAPER, Document
from providers.iam.setup import Call, SetupFacts, Step

GROUPS, NETWORK = "2021-04-01", "2024-05-01"
IDENTITIES, AUTHORIZATION = "2023-01-31", "2022-04-01"
EXCHANGE_AUDIENCE, GOOGLE_ISSUER = "api://AzureADTokenExchange", "https://accounts.google.com"
# Identity -> its roles.
HOLDERS = {CONTROL: (CONTROL, MARKET), REAPER: (REAPER,), NODE: (NODE,)}

# JMESPath of a role definition's permissions.
_PERMISSIONS_QUERY = "properties.permissions[0].[sort(actions), sort(not_null(dataActions, `[]`))]"


def steps(facts: SetupFacts) -> list[Step]:
    """Return the steps in dependency order."""
    home = facts.policy.regions[0]
    group = Step(
        f"the resource group {group_of(facts)}",
        _get(f"{_subscription(facts)}/resourcegroups/{group_of(facts)}", GROUPS),
        _put(
            f"{_subscription(facts)}/resourcegroups/{group_of(facts)}", GROUPS, {"location": home}
        ),
    )
    result = [group]
    for region, block in blocks(facts.policy.regions).items():
        result += _network(facts, region, block)
    for holder, roles in HOLDERS.items():
        result.append(_identity(facts, holder, home))
        for role in roles:
            result += _role(facts, holder, role)
    for cloud, (issuer, subject) in trusted_tokens(facts).items():
        result.append(_trust(facts, cloud, issuer, subject))
    if facts.trusts:
        result += [
            _identity_property(facts, "TENANT", "tenantId"),
            _identity_property(facts, "CLIENT", "clientId"),
        ]
    return result


def trusted_tokens(facts: SetupFacts) -> dict[str, tuple[str, str]]:
    """Return cloud -> (issuer, subject) of its machines' tokens."""
    return {
        cloud: (GOOGLE_ISSUER, arguments[0]) if cloud == "gcp" else (arguments[0], arguments[1])
        for cloud, arguments in facts.trusts.items()
    }


def node_identity_settings(facts: SetupFacts) -> dict[str, str]:
    """Return the configuration settings for the identity of machines."""
    kind = "Microsoft.ManagedIdentity/userAssignedIdentities"
    return {"node_identity": f"{_group(facts)}/providers/{kind}/{facts.policy.name(NODE)}"}


def federation_settings(facts: SetupFacts) -> dict[str, Any]:
    """Return the [stores.NAME.federate] settings for the trusted clouds."""
    return {
        "kind": "azure",
        "clouds": [*facts.trusts],
        "tenant": "$TENANT",
        "application": "$CLIENT",
    }


def group_of(facts: SetupFacts) -> str:
    return facts.policy.account.get("resource_group", "GROUP")


def subscription_of(facts: SetupFacts) -> str:
    return facts.policy.account.get("subscription_id", "SUBSCRIPTION")


def blocks(regions: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Return region -> CIDRs of its network, its machines, and its jump host."""
    offsets = [(213 + number // 16, number % 16 * 16) for number in range(len(regions))]
    return {
        region: (f"10.{a}.{b}.0/20", f"10.{a}.{b}.0/21", f"10.{a}.{b + 8}.0/24")
        for region, (a, b) in zip(regions, offsets, strict=True)
    }


def ssh_sources(facts: SetupFacts, block: tuple[str, str, str]) -> dict[str, str]:
    """Return subnet -> the only source that may use TCP 22, also within the network."""
    if facts.network == "jump":
        return {"nodes": block[2], "jump": facts.box}
    return {"nodes": facts.box}


def rules(source: str, own: str) -> list[dict[str, Any]]:
    """Return the rules of a firewall. Machines of a gang reach each other on all ports; nothing
    else in the network reaches them."""
    return [
        _rule("login", 100, source, "22", "Tcp"),
        _rule("among-themselves", 110, own, "*", "*"),
        _rule("nobody-else", 4000, "*", "*", "*", "Deny"),
    ]


def role_documents(facts: SetupFacts) -> dict[str, Document]:
    """Return role -> definition, without roles that grant nothing."""
    documents = {
        role: policies(facts.policy)[facts.policy.name(role)]
        for roles in HOLDERS.values()
        for role in roles
    }
    return {
        role: document
        for role, document in documents.items()
        if document["Actions"] or document["DataActions"]
    }


def stable_uuid(*parts: str) -> str:
    """Return the same UUID for the same parts: Azure requires UUIDs as names."""
    return str(uuid5(NAMESPACE_URL, "/".join(("spotd", *parts))))


def _network(facts: SetupFacts, region: str, block: tuple[str, str, str]) -> Iterator[Step]:
    root = f"{_group(facts)}/providers/Microsoft.Network"
    subnets = []
    for subnet, source in ssh_sources(facts, block).items():
        name = f"spotd-{region}" if subnet == "nodes" else f"spotd-{subnet}-{region}"
        addresses = block[1] if subnet == "nodes" else block[2]
        firewall = f"{root}/networkSecurityGroups/{name}"
        yield Step(
            f"{region}: the firewall {name}",
            _get(firewall, NETWORK),
            _put(
                firewall,
                NETWORK,
                {
                    "location": region,
                    "properties": {"securityRules": rules(source, addresses)},
                },
            ),
        )
        properties: dict[str, Any] = {
            "addressPrefix": addresses,
            "networkSecurityGroup": {"id": firewall},
        }
        if facts.network != "public":
            properties["serviceEndpoints"] = [{"service": "Microsoft.Storage"}]
        subnets.append({"name": subnet, "properties": properties})
    network = f"{root}/virtualNetworks/spotd-{region}"
    body = {
        "location": region,
        "properties": {"addressSpace": {"addressPrefixes": [block[0]]}, "subnets": subnets},
    }
    yield Step(f"{region}: its network", _get(network, NETWORK), _put(network, NETWORK, body))


def _rule(
    name: str, priority: int, source: str, ports: str, protocol: str, access: str = "Allow"
) -> dict[str, Any]:
    return {
        "name": name,
        "properties": {
            "direction": "Inbound",
            "access": access,
            "priority": priority,
            "protocol": protocol,
            "sourceAddressPrefix": source,
            "sourcePortRange": "*",
            "destinationAddressPrefix": "*",
            "destinationPortRange": ports,
        },
    }


def _identity(facts: SetupFacts, holder: str, home: str) -> Step:
    name = facts.policy.name(holder)
    kind = "Microsoft.ManagedIdentity/userAssignedIdentities"
    path = f"{_group(facts)}/providers/{kind}/{name}"
    answer = "properties.principalId"
    return Step(
        f"the identity {name}",
        _get(path, IDENTITIES, answer),
        _put(path, IDENTITIES, {"location": home}, answer),
        name=_principal(holder),
    )


def _trust(facts: SetupFacts, cloud: str, issuer: str, subject: str) -> Step:
    path = f"{node_identity_settings(facts)['node_identity']}/federatedIdentityCredentials/{cloud}"
    credential = {"issuer": issuer, "subject": subject, "audiences": [EXCHANGE_AUDIENCE]}
    expected = json.dumps([*credential.values()])
    answer = f"properties.[issuer, subject, audiences] == `{expected}`"
    return Step(
        f"that machines of {cloud} may be {facts.policy.name(NODE)}",
        _get(path, IDENTITIES, answer),
        _put(path, IDENTITIES, {"properties": credential}),
    )


def _identity_property(facts: SetupFacts, name: str, key: str) -> Step:
    """A property of the machines' identity, which is known once the identity exists; the reference
    to its principal orders the steps."""
    answer = f"properties.principalId == '${_principal(NODE)}' && properties.{key}"
    look = _get(node_identity_settings(facts)["node_identity"], IDENTITIES, answer)
    return Step(f"the {key} of {facts.policy.name(NODE)}", look, name=name)


def _role(facts: SetupFacts, holder: str, role: str) -> Iterator[Step]:
    document = role_documents(facts).get(role)
    if document is None:
        return
    scope, name = document["AssignableScopes"][0], document["Name"]
    definition = (
        f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{stable_uuid(scope, name)}"
    )
    permission = {
        "actions": document["Actions"],
        "notActions": [],
        "dataActions": document["DataActions"],
        "notDataActions": [],
    }
    expected = json.dumps([sorted(document["Actions"]), sorted(document["DataActions"])])
    yield Step(
        f"the role {name}",
        _get(definition, AUTHORIZATION, f"{_PERMISSIONS_QUERY} == `{expected}`"),
        _put(
            definition,
            AUTHORIZATION,
            {
                "properties": {
                    "roleName": name,
                    "description": document["Description"],
                    "type": "CustomRole",
                    "permissions": [permission],
                    "assignableScopes": [scope],
                }
            },
        ),
    )
    assignment_id = stable_uuid(scope, name, holder)
    path = f"{scope}/providers/Microsoft.Authorization/roleAssignments/{assignment_id}"
    assignment: dict[str, Any] = {
        "roleDefinitionId": definition,
        "principalId": f"${_principal(holder)}",
        "principalType": "ServicePrincipal",
    }
    answer = "id"
    if "AssignmentCondition" in document:
        condition = document["AssignmentCondition"]
        assignment |= {"condition": condition, "conditionVersion": "2.0"}
        answer = f"properties.condition == `{json.dumps(condition)}`"
    yield Step(
        f"that {facts.policy.name(holder)} has the role {name}",
        _get(path, AUTHORIZATION, answer),
        _put(path, AUTHORIZATION, {"properties": assignment}),
    )


def _principal(holder: str) -> str:
    return f"{holder.upper()}_PRINCIPAL"


def _subscription(facts: SetupFacts) -> str:
    return f"/subscriptions/{subscription_of(facts)}"


def _group(facts: SetupFacts) -> str:
    return f"{_subscription(facts)}/resourceGroups/{group_of(facts)}"


def _get(path: str, version: str, query: str = "id") -> Call:
    return Call("", "arm", "GET", {"path": path, "version": version}, query)


def _put(path: str, version: str, body: Mapping[str, Any], query: str = "") -> Call:
    return Call("", "arm", "PUT", {"path": path, "version": version, "body": body}, query)
