"""What spotd needs in an Azure subscription: a resource group of its own, a network in each region,
three identities and what they may do. `spotctl init azure` prints or applies it.

`Call.operation` is a verb, `parameters` have "path", "version" and, where there is one, "body". A
PUT makes what is not there and is over when what it made has been provisioned.
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
# What says who the machines of another cloud are: of AWS, what
# `aws iam enable-outbound-web-identity-federation` answered, and their role.
TRUSTS = {"aws": ("ISSUER", "ROLE-ARN"), "gcp": ("UNIQUE-ID",)}
EXCHANGE, GOOGLE = "api://AzureADTokenExchange", "https://accounts.google.com"
# Who gets which roles.
HOLDERS = {CONTROL: (CONTROL, MARKET), REAPER: (REAPER,), NODE: (NODE,)}

# Of a role definition, as a JMESPath.
_RIGHTS = "properties.permissions[0].[sort(actions), sort(not_null(dataActions, `[]`))]"


def steps(facts: SetupFacts) -> list[Step]:
    """In an order in which each finds what it needs."""
    home = facts.policy.regions[0]
    group = Step(
        f"the resource group {group_of(facts)}",
        _get(f"{_subscription(facts)}/resourcegroups/{group_of(facts)}", GROUPS),
        _put(
            f"{_subscription(facts)}/resourcegroups/{group_of(facts)}", GROUPS, {"location": home}
        ),
    )
    found = [group]
    for region, block in blocks(facts.policy.regions).items():
        found += _network(facts, region, block)
    for holder, roles in HOLDERS.items():
        found.append(_identity(facts, holder, home))
        for role in roles:
            found += _role(facts, holder, role)
    for cloud, (issuer, subject) in trusted(facts).items():
        found.append(_trust(facts, cloud, issuer, subject))
    if facts.trusts:
        found += [_told(facts, "TENANT", "tenantId"), _told(facts, "CLIENT", "clientId")]
    return found


def trusted(facts: SetupFacts) -> dict[str, tuple[str, str]]:
    """Cloud -> (issuer, subject) of the tokens that its machines show."""
    return {
        cloud: (GOOGLE, words[0]) if cloud == "gcp" else (words[0], words[1])
        for cloud, words in facts.trusts.items()
    }


def machines_are(facts: SetupFacts) -> dict[str, str]:
    """What the configuration says of who machines are."""
    kind = "Microsoft.ManagedIdentity/userAssignedIdentities"
    return {"node_identity": f"{_group(facts)}/providers/{kind}/{facts.policy.name(NODE)}"}


def federate(facts: SetupFacts) -> dict[str, Any]:
    """What [stores.NAME.federate] says of whom `trusts` are."""
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
    """Region -> the addresses of its network, of its machines, and of the jump host."""
    places = [(213 + number // 16, number % 16 * 16) for number in range(len(regions))]
    return {
        region: (f"10.{a}.{b}.0/20", f"10.{a}.{b}.0/21", f"10.{a}.{b + 8}.0/24")
        for region, (a, b) in zip(regions, places, strict=True)
    }


def login(facts: SetupFacts, block: tuple[str, str, str]) -> dict[str, str]:
    """Subnet -> from where TCP 22 is let in: nobody else's is, the network's own included."""
    if facts.network == "jump":
        return {"nodes": block[2], "jump": facts.box}
    return {"nodes": facts.box}


def rules(source: str, own: str) -> list[dict[str, Any]]:
    """Of a firewall: (name, priority, from where, ports, whether it lets in). Machines of a gang
    reach each other on all ports, and nobody else of the network reaches them."""
    return [
        _rule("login", 100, source, "22", "Tcp"),
        _rule("among-themselves", 110, own, "*", "*"),
        _rule("nobody-else", 4000, "*", "*", "*", "Deny"),
    ]


def role_documents(facts: SetupFacts) -> dict[str, Document]:
    """Role -> its definition; one that grants nothing is none."""
    found = {
        role: policies(facts.policy)[facts.policy.name(role)]
        for roles in HOLDERS.values()
        for role in roles
    }
    return {role: one for role, one in found.items() if one["Actions"] or one["DataActions"]}


def ident_of(*parts: str) -> str:
    """The same name for the same thing: Azure wants a UUID."""
    return str(uuid5(NAMESPACE_URL, "/".join(("spotd", *parts))))


def _network(facts: SetupFacts, region: str, block: tuple[str, str, str]) -> Iterator[Step]:
    root = f"{_group(facts)}/providers/Microsoft.Network"
    subnets = []
    for subnet, source in login(facts, block).items():
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
        told: dict[str, Any] = {
            "addressPrefix": addresses,
            "networkSecurityGroup": {"id": firewall},
        }
        if facts.network != "public":
            told["serviceEndpoints"] = [{"service": "Microsoft.Storage"}]
        subnets.append({"name": subnet, "properties": told})
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
    path = f"{machines_are(facts)['node_identity']}/federatedIdentityCredentials/{cloud}"
    told = {"issuer": issuer, "subject": subject, "audiences": [EXCHANGE]}
    wanted = json.dumps([*told.values()])
    answer = f"properties.[issuer, subject, audiences] == `{wanted}`"
    return Step(
        f"that machines of {cloud} may be {facts.policy.name(NODE)}",
        _get(path, IDENTITIES, answer),
        _put(path, IDENTITIES, {"properties": told}),
    )


def _told(facts: SetupFacts, name: str, key: str) -> Step:
    """What is known of the machines' identity once it is made, which naming it here waits for."""
    answer = f"properties.principalId == '${_principal(NODE)}' && properties.{key}"
    look = _get(machines_are(facts)["node_identity"], IDENTITIES, answer)
    return Step(f"the {key} of {facts.policy.name(NODE)}", look, name=name)


def _role(facts: SetupFacts, holder: str, role: str) -> Iterator[Step]:
    document = role_documents(facts).get(role)
    if document is None:
        return
    scope, name = document["AssignableScopes"][0], document["Name"]
    definition = (
        f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{ident_of(scope, name)}"
    )
    permission = {
        "actions": document["Actions"],
        "notActions": [],
        "dataActions": document["DataActions"],
        "notDataActions": [],
    }
    rights = json.dumps([sorted(document["Actions"]), sorted(document["DataActions"])])
    yield Step(
        f"the role {name}",
        _get(definition, AUTHORIZATION, f"{_RIGHTS} == `{rights}`"),
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
    assigned = ident_of(scope, name, holder)
    path = f"{scope}/providers/Microsoft.Authorization/roleAssignments/{assigned}"
    told: dict[str, Any] = {
        "roleDefinitionId": definition,
        "principalId": f"${_principal(holder)}",
        "principalType": "ServicePrincipal",
    }
    answer = "id"
    if "AssignmentCondition" in document:
        condition = document["AssignmentCondition"]
        told |= {"condition": condition, "conditionVersion": "2.0"}
        answer = f"properties.condition == `{json.dumps(condition)}`"
    yield Step(
        f"that {facts.policy.name(holder)} has the role {name}",
        _get(path, AUTHORIZATION, answer),
        _put(path, AUTHORIZATION, {"properties": told}),
    )


def _principal(holder: str) -> str:
    return f"{holder.upper()}_PRINCIPAL"


def _subscription(facts: SetupFacts) -> str:
    return f"/subscriptions/{subscription_of(facts)}"


def _group(facts: SetupFacts) -> str:
    return f"{_subscription(facts)}/resourceGroups/{group_of(facts)}"


def _get(path: str, version: str, answer: str = "id") -> Call:
    return Call("", "arm", "GET", {"path": path, "version": version}, answer)


def _put(path: str, version: str, body: Mapping[str, Any], answer: str = "") -> Call:
    return Call("", "arm", "PUT", {"path": path, "version": version, "body": body}, answer)
