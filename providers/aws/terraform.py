"""Render the set-up of setup.py for Terraform with AWS's provider."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from providers.aws.roles import entra_issuer, has_instance_profile, roles
from providers.aws.setup import (
    ANYWHERE,
    CIDR,
    DETAIL_TYPES,
    EVENT_RULE,
    GROUP,
    JUMP_GROUP,
    JUMP_TAG,
    NETWORK_TAG,
    federation_settings,
    queue_policy,
)
from providers.federated_stores import terraform_output
from providers.iam.hcl import Raw, block, heredoc, label_of, module_head
from providers.iam.setup import SetupFacts

_HEAD = module_head("AWS account", "aws", "5.0")


def terraform(facts: SetupFacts) -> str:
    """Return a root module."""
    parts = [_HEAD]
    parts += [
        block("provider", ["aws"], {"alias": label_of(region), "region": region})
        for region in facts.policy.regions
    ]
    home = {"provider": _provider(facts.policy.regions[0])}
    parts.append(block("data", ["aws_caller_identity", "here"], home))
    issuer, audience = entra_issuer(facts)
    if issuer:
        body = {**home, "url": f"https://{issuer}", "client_id_list": [audience]}
        parts.append(block("resource", ["aws_iam_openid_connect_provider", "entra"], body))
    for name, (trusted, documents) in roles(facts).items():
        parts.extend(_role(name, trusted, documents, home))
    for region in facts.policy.regions:
        parts.extend(_network(region, facts))
        if facts.queue:
            parts.extend(_queue(region, facts.queue))
    if facts.trusts:
        names = {"ACCOUNT": "data.aws_caller_identity.here.account_id"}
        parts.append(terraform_output(facts.policy, federation_settings(facts), names))
    return "\n".join(parts)


def _role(
    name: str,
    trusted: Mapping[str, Any],
    documents: Mapping[str, Mapping[str, Any]],
    home: Mapping[str, Any],
) -> Iterator[str]:
    label = label_of(name)
    account = "${data.aws_caller_identity.here.account_id}"
    trust = json.dumps(trusted, indent=2).replace("$ACCOUNT", account)
    yield block(
        "resource",
        ["aws_iam_role", label],
        {**home, "name": name, "assume_role_policy": heredoc(trust)},
    )
    role = Raw(f"aws_iam_role.{label}.name")
    for policy_name, document in documents.items():
        text = heredoc(json.dumps(document, indent=2))
        yield block(
            "resource",
            ["aws_iam_role_policy", label_of(policy_name)],
            {**home, "name": policy_name, "role": role, "policy": text},
        )
    if has_instance_profile(name):
        yield block(
            "resource", ["aws_iam_instance_profile", label], {**home, "name": name, "role": role}
        )


def _network(region: str, facts: SetupFacts) -> Iterator[str]:
    label, kind = label_of(region), facts.network
    region_provider = {"provider": _provider(region)}
    tags = {"tags": {NETWORK_TAG: kind, "Name": "spotd"}}
    vpc = Raw(f"aws_vpc.{label}.id")
    filters = [{"name": "zone-type", "values": ["availability-zone"]}]
    zones = {"state": "available", "filter": filters}
    yield block("data", ["aws_availability_zones", label], region_provider | zones)
    addresses = CIDR.format("0.0", 16)
    yield block("resource", ["aws_vpc", label], region_provider | {"cidr_block": addresses} | tags)
    letter = "substr(each.key, -1, 1)"
    number = f'index(["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o"], {letter})'
    subnet = {
        "for_each": Raw(f"toset(data.aws_availability_zones.{label}.names)"),
        "vpc_id": vpc,
        "availability_zone": Raw("each.key"),
        "cidr_block": Raw(f"cidrsubnet(aws_vpc.{label}.cidr_block, 4, {number})"),
    }
    yield block("resource", ["aws_subnet", label], region_provider | subnet | tags)
    table = Raw(f"aws_vpc.{label}.main_route_table_id")
    if kind == "public":
        yield from _gateway(region, table, kind)
    else:
        endpoint = {
            "vpc_id": vpc,
            "service_name": f"com.amazonaws.{region}.s3",
            "vpc_endpoint_type": "Gateway",
            "route_table_ids": [table],
        }
        yield block("resource", ["aws_vpc_endpoint", label], region_provider | endpoint | tags)
    yield from _groups(region, facts)
    if kind == "jump":
        yield from _jump(region)


def _gateway(region: str, table: Raw, kind: str) -> Iterator[str]:
    label, region_provider = label_of(region), {"provider": _provider(region)}
    tags = {NETWORK_TAG: kind, "Name": "spotd"}
    vpc = {"vpc_id": Raw(f"aws_vpc.{label}.id"), "tags": tags}
    yield block("resource", ["aws_internet_gateway", label], region_provider | vpc)
    route = {
        "route_table_id": table,
        "destination_cidr_block": ANYWHERE,
        "gateway_id": Raw(f"aws_internet_gateway.{label}.id"),
    }
    yield block("resource", ["aws_route", label], region_provider | route)


def _groups(region: str, facts: SetupFacts) -> Iterator[str]:
    label, region_provider = label_of(region), {"provider": _provider(region)}
    vpc = Raw(f"aws_vpc.{label}.id")
    all_ports = {"from_port": 0, "to_port": 0, "protocol": "-1"}
    box = {"from_port": 22, "to_port": 22, "protocol": "tcp", "cidr_blocks": [facts.box]}
    login = box
    if facts.network == "jump":
        jump = Raw(f"aws_security_group.{label}_jump.id")
        login = {k: v for k, v in box.items() if k != "cidr_blocks"} | {"security_groups": [jump]}
        group = {
            "name": JUMP_GROUP,
            "description": "Made for spotd",
            "vpc_id": vpc,
            "ingress": [box],
            "egress": [all_ports | {"cidr_blocks": [ANYWHERE]}],
            "tags": {JUMP_TAG: facts.network, "Name": "spotd"},
        }
        yield block("resource", ["aws_security_group", f"{label}_jump"], region_provider | group)
    group = {
        "name": GROUP,
        "description": "Made for spotd",
        "vpc_id": vpc,
        "ingress": [login, all_ports | {"self": True}],
        "egress": [all_ports | {"cidr_blocks": [ANYWHERE]}, all_ports | {"self": True}],
        "tags": {NETWORK_TAG: facts.network, "Name": "spotd"},
    }
    yield block("resource", ["aws_security_group", label], region_provider | group)


def _jump(region: str) -> Iterator[str]:
    label, region_provider = f"{label_of(region)}_jump", {"provider": _provider(region)}
    vpc = {"vpc_id": Raw(f"aws_vpc.{label_of(region)}.id")}
    tags = {"tags": {JUMP_TAG: "jump", "Name": "spotd"}}
    yield block("resource", ["aws_route_table", label], region_provider | vpc | tags)
    yield from _gateway(region, Raw(f"aws_route_table.{label}.id"), "jump")
    cidr = {"cidr_block": CIDR.format("255.0", 24)}
    yield block("resource", ["aws_subnet", label], region_provider | vpc | cidr | tags)
    association = {
        "route_table_id": Raw(f"aws_route_table.{label}.id"),
        "subnet_id": Raw(f"aws_subnet.{label}.id"),
    }
    yield block("resource", ["aws_route_table_association", label], region_provider | association)


def _queue(region: str, name: str) -> Iterator[str]:
    label, region_provider = label_of(region), {"provider": _provider(region)}
    queue = {"name": name, "message_retention_seconds": 3600}
    yield block("resource", ["aws_sqs_queue", label], region_provider | queue)
    pattern = json.dumps({"source": ["aws.ec2"], "detail-type": [*DETAIL_TYPES]}, indent=2)
    rule = {"name": EVENT_RULE, "event_pattern": heredoc(pattern)}
    yield block("resource", ["aws_cloudwatch_event_rule", label], region_provider | rule)
    queue_arn = f"aws_sqs_queue.{label}.arn"
    rule_arn = f"aws_cloudwatch_event_rule.{label}.arn"
    document = queue_policy(f"${{{queue_arn}}}", f"${{{rule_arn}}}")
    policy = {
        "queue_url": Raw(f"aws_sqs_queue.{label}.url"),
        "policy": heredoc(json.dumps(document, indent=2)),
    }
    yield block("resource", ["aws_sqs_queue_policy", label], region_provider | policy)
    target = {
        "rule": Raw(f"aws_cloudwatch_event_rule.{label}.name"),
        "target_id": "spotd",
        "arn": Raw(queue_arn),
    }
    yield block("resource", ["aws_cloudwatch_event_target", label], region_provider | target)


def _provider(region: str) -> Raw:
    return Raw(f"aws.{label_of(region)}")
