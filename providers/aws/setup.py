"""What spotd needs in an AWS account: a network in each region, four roles, and a queue of
warnings where one is wanted. `spotctl init aws` prints or applies it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from providers.aws.roles import HOME, WEB, role_steps
from providers.iam.policy import NODE, Document
from providers.iam.setup import Call, SetupFacts, Step

# What says who the machines of another cloud are; AUDIENCE is that of [stores.NAME.federate].
TRUSTS = {"gcp": ("UNIQUE-ID", "AUDIENCE"), "azure": ("TENANT", "OBJECT-ID", "AUDIENCE")}
NETWORK_TAG = "spotd-network"
JUMP_TAG = "spotd-jump"  # of what is not for machines
BLOCK = "10.213.{}/{}"  # of the network; a zone has a sixteenth of it
GROUP, JUMP_GROUP = "spotd", "spotd-jump"
RULE = "spotd-warnings"
DETAIL_TYPES = ("EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation")
ANYWHERE = "0.0.0.0/0"


def steps(facts: SetupFacts) -> list[Step]:
    """In an order in which each finds what it needs."""
    found = [
        Step("the account", Call(HOME, "sts", "get_caller_identity", {}, "Account"), name="ACCOUNT")
    ]
    found.extend(role_steps(facts))
    for region in facts.policy.regions:
        found.extend(_Network(region, facts.network, facts.box).steps())
        if facts.queue:
            found.extend(_queue(region, facts.queue))
    return found


def machines_are(facts: SetupFacts) -> dict[str, str]:
    """What the configuration says of who machines are."""
    return {"node_role": facts.policy.name(NODE)}


def federate(facts: SetupFacts) -> dict[str, Any]:
    """What [stores.NAME.federate] says of whom `trusts` are. Raises ValueError for tokens of two
    audiences: it has one."""
    audiences = {cloud: words[-1] for cloud, words in facts.trusts.items()}
    if len(set(audiences.values())) > 1:
        told = " and ".join(f"{cloud}'s is {word!r}" for cloud, word in audiences.items())
        raise ValueError(f"a store has one AUDIENCE, and {told}")
    role = f"arn:aws:iam::$ACCOUNT:role/{facts.policy.name(WEB)}"
    [audience] = set(audiences.values())
    return {"kind": "aws", "clouds": [*audiences], "role": role, "audience": audience}


class _Network:
    """Of one region."""

    def __init__(self, region: str, kind: str, box: str) -> None:
        self._region = region
        self._kind = kind
        self._box = box

    def steps(self) -> Iterator[Step]:
        yield Step(
            f"the zones of {self._region}",
            self._ec2(
                "describe_availability_zones",
                "join(' ', AvailabilityZones[].ZoneName)",
                Filters=_filters({"zone-type": "availability-zone", "state": "available"}),
            ),
            name=self._name("ZONES"),
        )
        yield self._tagged(
            "VPC", "vpc", "describe_vpcs", "Vpcs[0].VpcId", "create_vpc", "Vpc.VpcId",
            {"CidrBlock": BLOCK.format("0.0", 16)},
        )  # fmt: skip
        main = {"vpc-id": self._value("VPC"), "association.main": "true"}
        table = self._ec2(
            "describe_route_tables", "RouteTables[0].RouteTableId", Filters=_filters(main)
        )
        yield Step(f"{self._region}: its main route table", table, name=self._name("TABLE"))
        if self._kind == "public":
            yield from self._gateway("TABLE")
        else:
            yield self._objects()
        yield self._subnets()
        yield from self._group("SG", GROUP, NETWORK_TAG)
        yield from self._among_themselves()
        if self._kind == "jump":
            yield from self._jump()
        else:
            yield self._login("SG", {"CidrIp": self._box}, f"CidrIpv4=='{self._box}'", self._box)

    def _gateway(self, table: str) -> Iterator[Step]:
        """A way to the internet and from it, for the subnets of a route table."""
        yield self._tagged(
            "IGW", "internet-gateway", "describe_internet_gateways",
            "InternetGateways[0].InternetGatewayId", "create_internet_gateway",
            "InternetGateway.InternetGatewayId", {},
        )  # fmt: skip
        gateway, vpc = self._value("IGW"), self._value("VPC")
        attached = _filters({"internet-gateway-id": gateway, "attachment.vpc-id": vpc})
        yield Step(
            f"{self._region}: its internet gateway, attached",
            self._ec2(
                "describe_internet_gateways",
                "InternetGateways[0].InternetGatewayId",
                Filters=attached,
            ),
            self._ec2("attach_internet_gateway", "", InternetGatewayId=gateway, VpcId=vpc),
        )
        yield Step(
            f"{self._region}: the route to the internet",
            self._ec2(
                "describe_route_tables",
                f"RouteTables[0].Routes[?DestinationCidrBlock=='{ANYWHERE}'].GatewayId | [0]",
                RouteTableIds=[self._value(table)],
            ),
            self._ec2(
                "create_route",
                "Return",
                RouteTableId=self._value(table),
                DestinationCidrBlock=ANYWHERE,
                GatewayId=gateway,
            ),
        )

    def _objects(self) -> Step:
        """S3, without which a machine that reaches nothing else could not save."""
        service = f"com.amazonaws.{self._region}.s3"
        vpc = self._value("VPC")
        return Step(
            f"{self._region}: a way to S3",
            self._ec2(
                "describe_vpc_endpoints",
                "VpcEndpoints[0].VpcEndpointId",
                Filters=_filters({"vpc-id": vpc, "service-name": service}),
            ),
            self._ec2(
                "create_vpc_endpoint",
                "VpcEndpoint.VpcEndpointId",
                VpcId=vpc,
                ServiceName=service,
                VpcEndpointType="Gateway",
                RouteTableIds=[self._value("TABLE")],
                TagSpecifications=self._tags("vpc-endpoint", NETWORK_TAG),
            ),
        )

    def _subnets(self) -> Step:
        vpc = self._value("VPC")
        here = {"vpc-id": vpc, "availability-zone": "$ZONE", f"tag:{NETWORK_TAG}": self._kind}
        return Step(
            "the subnet of $ZONE",
            self._ec2("describe_subnets", "Subnets[0].SubnetId", Filters=_filters(here)),
            self._ec2(
                "create_subnet",
                "Subnet.SubnetId",
                VpcId=vpc,
                AvailabilityZone="$ZONE",
                CidrBlock=BLOCK.format("$NET.0", 20),
                TagSpecifications=self._tags("subnet", NETWORK_TAG),
            ),
            each=self._name("ZONES"),
        )

    def _group(self, name: str, called: str, tag: str) -> Iterator[Step]:
        vpc = self._value("VPC")
        yield Step(
            f"{self._region}: the security group {called}",
            self._ec2(
                "describe_security_groups",
                "SecurityGroups[0].GroupId",
                Filters=_filters({"vpc-id": vpc, "group-name": called}),
            ),
            self._ec2(
                "create_security_group",
                "GroupId",
                GroupName=called,
                Description="Made for spotd",
                VpcId=vpc,
                TagSpecifications=self._tags("security-group", tag),
            ),
            name=self._name(name),
        )

    def _login(self, group: str, source: Mapping[str, str], fits: str, words: str) -> Step:
        """SSH, from one place."""
        pair = {"UserIdGroupPairs": [source]} if "GroupId" in source else {"IpRanges": [source]}
        permission = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **pair}
        query = f"SecurityGroupRules[?!IsEgress && FromPort==`22` && {fits}].SecurityGroupRuleId"
        return Step(
            f"{self._region}: SSH to the security group from {words} alone",
            self._rules(group, query),
            self._ec2(
                "authorize_security_group_ingress",
                "Return",
                GroupId=self._value(group),
                IpPermissions=[permission],
            ),
        )

    def _among_themselves(self) -> Iterator[Step]:
        """The ranks of a gang; EFA wants both ways named."""
        group = self._value("SG")
        permission = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
        for way, egress in (("ingress", "!IsEgress"), ("egress", "IsEgress")):
            fits = f"{egress} && ReferencedGroupInfo.GroupId=='{group}'"
            yield Step(
                f"{self._region}: {way} of machines among themselves",
                self._rules("SG", f"SecurityGroupRules[?{fits}].SecurityGroupRuleId"),
                self._ec2(
                    f"authorize_security_group_{way}",
                    "Return",
                    GroupId=group,
                    IpPermissions=[permission],
                ),
            )

    def _rules(self, group: str, query: str) -> Call:
        filters = _filters({"group-id": self._value(group)})
        return self._ec2("describe_security_group_rules", f"{query} | [0]", Filters=filters)

    def _jump(self) -> Iterator[Step]:
        """Where a host with a public address goes, the only one that machines let in."""
        yield self._tagged(
            "JUMP_TABLE", "route-table", "describe_route_tables", "RouteTables[0].RouteTableId",
            "create_route_table", "RouteTable.RouteTableId", {"VpcId": self._value("VPC")},
            tag=JUMP_TAG,
        )  # fmt: skip
        yield from self._gateway("JUMP_TABLE")
        place = {"VpcId": self._value("VPC"), "CidrBlock": BLOCK.format("255.0", 24)}
        yield self._tagged(
            "JUMP_SUBNET", "subnet", "describe_subnets", "Subnets[0].SubnetId",
            "create_subnet", "Subnet.SubnetId", place, tag=JUMP_TAG,
        )  # fmt: skip
        table, subnet = self._value("JUMP_TABLE"), self._value("JUMP_SUBNET")
        yield Step(
            f"{self._region}: the route of the jump host's subnet",
            self._ec2(
                "describe_route_tables",
                "RouteTables[0].RouteTableId",
                Filters=_filters({"association.subnet-id": subnet}),
            ),
            self._ec2(
                "associate_route_table", "AssociationId", RouteTableId=table, SubnetId=subnet
            ),
        )
        yield from self._group("JUMP_SG", JUMP_GROUP, JUMP_TAG)
        box = self._box
        yield self._login("JUMP_SG", {"CidrIp": box}, f"CidrIpv4=='{box}'", box)
        jump = self._value("JUMP_SG")
        fits = f"ReferencedGroupInfo.GroupId=='{jump}'"
        yield self._login("SG", {"GroupId": jump}, fits, "the jump host")

    def _tagged(
        self, name: str, kind: str, look: str, seen: str, make: str, made: str,
        parameters: Mapping[str, Any], tag: str = NETWORK_TAG,
    ) -> Step:  # fmt: skip
        """Something that is known by its tag."""
        tagged = _filters({f"tag:{tag}": self._kind})
        tags = self._tags(kind, tag)
        whose = " of the jump host" if tag == JUMP_TAG else ""
        return Step(
            f"{self._region}: its {kind.replace('-', ' ')}{whose}",
            self._ec2(look, seen, Filters=tagged),
            self._ec2(make, made, **parameters, TagSpecifications=tags),
            name=self._name(name),
        )

    def _tags(self, kind: str, tag: str) -> list[dict[str, Any]]:
        pairs = [{"Key": tag, "Value": self._kind}, {"Key": "Name", "Value": "spotd"}]
        return [{"ResourceType": kind, "Tags": pairs}]

    def _ec2(self, operation: str, answer: str, **parameters: Any) -> Call:
        return Call(self._region, "ec2", operation, parameters, answer)

    def _name(self, name: str) -> str:
        return name_in(self._region, name)

    def _value(self, name: str) -> str:
        return f"${self._name(name)}"


def _queue(region: str, name: str) -> Iterator[Step]:
    """A queue, and the rule that fills it: of every machine of the account, for rules cannot be
    limited to a tag."""
    url, arn, rule = (f"${name_in(region, one)}" for one in ("QUEUE", "QUEUE_ARN", "RULE"))

    def sqs(operation: str, answer: str, **parameters: Any) -> Call:
        return Call(region, "sqs", operation, parameters, answer)

    def events(operation: str, answer: str, **parameters: Any) -> Call:
        return Call(region, "events", operation, parameters, answer)

    # An hour: a warning is of no use to anybody after two minutes.
    kept = {"MessageRetentionPeriod": "3600"}
    yield Step(
        f"{region}: the queue {name}",
        sqs("get_queue_url", "QueueUrl", QueueName=name),
        sqs("create_queue", "QueueUrl", QueueName=name, Attributes=kept),
        name=name_in(region, "QUEUE"),
    )
    attributes = {"QueueUrl": url, "AttributeNames": ["QueueArn", "Policy"]}
    look = sqs("get_queue_attributes", "Attributes.QueueArn", **attributes)
    yield Step(f"{region}: the queue's ARN", look, name=name_in(region, "QUEUE_ARN"))
    pattern = json.dumps({"source": ["aws.ec2"], "detail-type": [*DETAIL_TYPES]})
    yield Step(
        f"{region}: the rule {RULE} for warnings of interruptions",
        events("describe_rule", "Arn", Name=RULE),
        events("put_rule", "RuleArn", Name=RULE, EventPattern=pattern, State="ENABLED"),
        name=name_in(region, "RULE"),
    )
    policy = json.dumps(queue_policy(arn, rule))
    yield Step(
        f"{region}: that the rule may fill the queue",
        sqs(
            "get_queue_attributes",
            f"Attributes.Policy && contains(Attributes.Policy, '{rule}')",
            **attributes,
        ),
        sqs("set_queue_attributes", "", QueueUrl=url, Attributes={"Policy": policy}),
    )
    yield Step(
        f"{region}: that the rule fills the queue",
        events("list_targets_by_rule", f"Targets[?Arn=='{arn}'].Id | [0]", Rule=RULE),
        events("put_targets", "", Rule=RULE, Targets=[{"Id": "spotd", "Arn": arn}]),
    )


def queue_policy(queue_arn: str, rule_arn: str) -> Document:
    """EventBridge may send what that rule found."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule_arn}},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def name_in(region: str, name: str) -> str:
    """What something of a region is called in steps: VPC_US_EAST_1."""
    return f"{name}_{region.upper().replace('-', '_')}"


def _filters(wanted: Mapping[str, str]) -> Sequence[dict[str, Any]]:
    return [{"Name": name, "Values": [value]} for name, value in wanted.items()]
