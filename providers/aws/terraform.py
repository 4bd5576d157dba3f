"""The same as the steps of setup.py, for Terraform with AWS's provider."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from providers.aws.setup import (
    ANYWHERE,
    BLOCK,
    DETAIL_TYPES,
    GROUP,
    JUMP_GROUP,
    JUMP_TAG,
    NETWORK_TAG,
    RULE,
    queue_policy,
    roles,
)
from providers.setup import SetupFacts

_HEAD = """\
# What spotd needs in this AWS account: `terraform init`, and `terraform apply`.
terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}
"""


class Raw(str):
    """An expression, written as it is."""

    __slots__ = ()


def terraform(facts: SetupFacts) -> str:
    """A root module."""
    parts = [_HEAD]
    parts += [
        _block("provider", ["aws"], {"alias": _id(region), "region": region})
        for region in facts.policy.regions
    ]
    home = {"provider": _provider(facts.policy.regions[0])}
    parts.append(_block("data", ["aws_caller_identity", "here"], home))
    for name, (trusted, document) in roles(facts).items():
        parts.extend(_role(name, trusted, document, home))
    for region in facts.policy.regions:
        parts.extend(_network(region, facts))
        if facts.queue:
            parts.extend(_queue(region, facts.queue))
    return "\n".join(parts)


def _role(
    name: str, trusted: Mapping[str, Any], document: Mapping[str, Any], home: Mapping[str, Any]
) -> Iterator[str]:
    label = _id(name)
    account = "${data.aws_caller_identity.here.account_id}"
    trust = json.dumps(trusted, indent=2).replace("$ACCOUNT", account)
    yield _block(
        "resource",
        ["aws_iam_role", label],
        {**home, "name": name, "assume_role_policy": _heredoc(trust)},
    )
    role = Raw(f"aws_iam_role.{label}.name")
    yield _block(
        "resource",
        ["aws_iam_role_policy", label],
        {**home, "name": name, "role": role, "policy": _heredoc(json.dumps(document, indent=2))},
    )
    yield _block(
        "resource", ["aws_iam_instance_profile", label], {**home, "name": name, "role": role}
    )


def _network(region: str, facts: SetupFacts) -> Iterator[str]:
    label, kind = _id(region), facts.network
    here = {"provider": _provider(region)}
    tags = {"tags": {NETWORK_TAG: kind, "Name": "spotd"}}
    vpc = Raw(f"aws_vpc.{label}.id")
    filters = [{"name": "zone-type", "values": ["availability-zone"]}]
    zones = {"state": "available", "filter": filters}
    yield _block("data", ["aws_availability_zones", label], here | zones)
    block = BLOCK.format("0.0", 16)
    yield _block("resource", ["aws_vpc", label], here | {"cidr_block": block} | tags)
    letter = "substr(each.key, -1, 1)"
    number = f'index(["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o"], {letter})'
    subnet = {
        "for_each": Raw(f"toset(data.aws_availability_zones.{label}.names)"),
        "vpc_id": vpc,
        "availability_zone": Raw("each.key"),
        "cidr_block": Raw(f"cidrsubnet(aws_vpc.{label}.cidr_block, 4, {number})"),
    }
    yield _block("resource", ["aws_subnet", label], here | subnet | tags)
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
        yield _block("resource", ["aws_vpc_endpoint", label], here | endpoint | tags)
    yield from _groups(region, facts)
    if kind == "jump":
        yield from _jump(region)


def _gateway(region: str, table: Raw, kind: str) -> Iterator[str]:
    label, here = _id(region), {"provider": _provider(region)}
    tags = {NETWORK_TAG: kind, "Name": "spotd"}
    vpc = {"vpc_id": Raw(f"aws_vpc.{label}.id"), "tags": tags}
    yield _block("resource", ["aws_internet_gateway", label], here | vpc)
    route = {
        "route_table_id": table,
        "destination_cidr_block": ANYWHERE,
        "gateway_id": Raw(f"aws_internet_gateway.{label}.id"),
    }
    yield _block("resource", ["aws_route", label], here | route)


def _groups(region: str, facts: SetupFacts) -> Iterator[str]:
    label, here = _id(region), {"provider": _provider(region)}
    vpc = Raw(f"aws_vpc.{label}.id")
    all_out = {"from_port": 0, "to_port": 0, "protocol": "-1"}
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
            "egress": [all_out | {"cidr_blocks": [ANYWHERE]}],
            "tags": {JUMP_TAG: facts.network, "Name": "spotd"},
        }
        yield _block("resource", ["aws_security_group", f"{label}_jump"], here | group)
    group = {
        "name": GROUP,
        "description": "Made for spotd",
        "vpc_id": vpc,
        "ingress": [login, all_out | {"self": True}],
        "egress": [all_out | {"cidr_blocks": [ANYWHERE]}, all_out | {"self": True}],
        "tags": {NETWORK_TAG: facts.network, "Name": "spotd"},
    }
    yield _block("resource", ["aws_security_group", label], here | group)


def _jump(region: str) -> Iterator[str]:
    label, here = f"{_id(region)}_jump", {"provider": _provider(region)}
    vpc = {"vpc_id": Raw(f"aws_vpc.{_id(region)}.id")}
    tags = {"tags": {JUMP_TAG: "jump", "Name": "spotd"}}
    yield _block("resource", ["aws_route_table", label], here | vpc | tags)
    yield from _gateway(region, Raw(f"aws_route_table.{label}.id"), "jump")
    place = {"cidr_block": BLOCK.format("255.0", 24)}
    yield _block("resource", ["aws_subnet", label], here | vpc | place | tags)
    joined = {
        "route_table_id": Raw(f"aws_route_table.{label}.id"),
        "subnet_id": Raw(f"aws_subnet.{label}.id"),
    }
    yield _block("resource", ["aws_route_table_association", label], here | joined)


def _queue(region: str, name: str) -> Iterator[str]:
    label, here = _id(region), {"provider": _provider(region)}
    kept = {"name": name, "message_retention_seconds": 3600}
    yield _block("resource", ["aws_sqs_queue", label], here | kept)
    pattern = json.dumps({"source": ["aws.ec2"], "detail-type": [*DETAIL_TYPES]}, indent=2)
    rule = {"name": RULE, "event_pattern": _heredoc(pattern)}
    yield _block("resource", ["aws_cloudwatch_event_rule", label], here | rule)
    queue_arn = f"aws_sqs_queue.{label}.arn"
    rule_arn = f"aws_cloudwatch_event_rule.{label}.arn"
    document = queue_policy(f"${{{queue_arn}}}", f"${{{rule_arn}}}")
    policy = {
        "queue_url": Raw(f"aws_sqs_queue.{label}.url"),
        "policy": _heredoc(json.dumps(document, indent=2)),
    }
    yield _block("resource", ["aws_sqs_queue_policy", label], here | policy)
    target = {
        "rule": Raw(f"aws_cloudwatch_event_rule.{label}.name"),
        "target_id": "spotd",
        "arn": Raw(queue_arn),
    }
    yield _block("resource", ["aws_cloudwatch_event_target", label], here | target)


def _block(kind: str, labels: list[str], body: Mapping[str, Any]) -> str:
    """One block; a list of mappings among its values is as many blocks of that name."""
    head = " ".join([kind, *(json.dumps(label) for label in labels)])
    return f"{head} {{\n" + "".join(_lines(body, "  ")) + "}\n"


def _lines(body: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in body.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            for inner in value:
                yield (
                    f"{indent}{key} {{\n" + "".join(_lines(inner, indent + "  ")) + f"{indent}}}\n"
                )
        elif isinstance(value, Mapping):
            yield f"{indent}{key} = {{\n" + "".join(_pairs(value, indent + "  ")) + f"{indent}}}\n"
        else:
            yield f"{indent}{key} = {_value(value)}\n"


def _pairs(body: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in body.items():
        yield f"{indent}{json.dumps(key)} = {_value(value)}\n"


def _value(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return json.dumps(value)


def _heredoc(text: str) -> Raw:
    return Raw(f"<<-JSON\n{text}\nJSON")


def _id(name: str) -> str:
    return name.replace("-", "_")


def _provider(region: str) -> Raw:
    return Raw(f"aws.{_id(region)}")
