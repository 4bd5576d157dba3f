"""Set-up of an AWS account: a network in each region, four roles, and optionally a queue of
warnings. `spotctl init aws` prints or applies it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from providers.aws.roles import HOME_REGION, WEB_IDENTITY, role_steps
from providers.iam.policy import NODE, Document
from providers.iam.setup import Call, SetupFacts, Step

NETWORK_TAG = "spotd-network"
JUMP_TAG = "spotd-jump"  # of resources that are not for nodes
CIDR = "10.213.{}/{}"  # of the network; each zone gets a sixteenth
GROUP, JUMP_GROUP = "spotd", "spotd-jump"
EVENT_RULE = "spotd-warnings"
DETAIL_TYPES = ("EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation")
ANYWHERE = "0.0.0.0/0"


def steps(facts: SetupFacts) -> list[Step]:
    """Return the steps in dependency order."""
    result = [
        Step(
            "the account",
            Call(HOME_REGION, "sts", "get_caller_identity", {}, "Account"),
            name="ACCOUNT",
        )
    ]
    result.extend(role_steps(facts))
    for region in facts.policy.regions:
        result.extend(_Network(region, facts.network, facts.box).steps())
        if facts.queue:
            result.extend(_queue(region, facts.queue))
    return result


def node_identity_settings(facts: SetupFacts) -> dict[str, str]:
    """Return the configuration settings for the identity of machines."""
    return {"node_role": facts.policy.name(NODE)}


def federation_settings(facts: SetupFacts) -> dict[str, Any]:
    """Return the [stores.NAME.federate] settings for the trusted clouds. Raises ValueError ("text;
    fix") for tokens with two audiences: the section has one."""
    audiences = {cloud: arguments[-1] for cloud, arguments in facts.trusts.items()}
    if len(set(audiences.values())) > 1:
        described = " and ".join(
            f"{cloud}'s is {audience_!r}" for cloud, audience_ in audiences.items()
        )
        fix = "the same AUDIENCE for both: for gcp any word does"
        raise ValueError(f"a store has one AUDIENCE, and {described}; {fix}")
    role = f"arn:aws:iam::$ACCOUNT:role/{facts.policy.name(WEB_IDENTITY)}"
    [audience] = set(audiences.values())
    return {"kind": "aws", "clouds": [*audiences], "role": role, "audience": audience}


class _Network:
    """The network of one region."""

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
            {"CidrBlock": CIDR.format("0.0", 16)},
        )  # fmt: skip
        main_table_filter = {"vpc-id": self._placeholder("VPC"), "association.main": "true"}
        find_table = self._ec2(
            "describe_route_tables",
            "RouteTables[0].RouteTableId",
            Filters=_filters(main_table_filter),
        )
        yield Step(f"{self._region}: its main route table", find_table, name=self._name("TABLE"))
        if self._kind == "public":
            yield from self._gateway("TABLE")
        else:
            yield self._s3_endpoint()
        yield self._subnets()
        yield from self._security_group("SG", GROUP, NETWORK_TAG)
        yield from self._internal_traffic()
        if self._kind == "jump":
            yield from self._jump_network()
        else:
            yield self._ssh_rule("SG", {"CidrIp": self._box}, f"CidrIpv4=='{self._box}'", self._box)

    def _gateway(self, table: str) -> Iterator[Step]:
        """Internet access for the subnets of a route table."""
        yield self._tagged(
            "IGW", "internet-gateway", "describe_internet_gateways",
            "InternetGateways[0].InternetGatewayId", "create_internet_gateway",
            "InternetGateway.InternetGatewayId", {},
        )  # fmt: skip
        gateway, vpc = self._placeholder("IGW"), self._placeholder("VPC")
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
                RouteTableIds=[self._placeholder(table)],
            ),
            self._ec2(
                "create_route",
                "Return",
                RouteTableId=self._placeholder(table),
                DestinationCidrBlock=ANYWHERE,
                GatewayId=gateway,
            ),
        )

    def _s3_endpoint(self) -> Step:
        """Access to S3, which machines without internet access need for checkpoints."""
        service = f"com.amazonaws.{self._region}.s3"
        vpc = self._placeholder("VPC")
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
                RouteTableIds=[self._placeholder("TABLE")],
                TagSpecifications=self._tags("vpc-endpoint", NETWORK_TAG),
            ),
        )

    def _subnets(self) -> Step:
        vpc = self._placeholder("VPC")
        filters = {"vpc-id": vpc, "availability-zone": "$ZONE", f"tag:{NETWORK_TAG}": self._kind}
        return Step(
            "the subnet of $ZONE",
            self._ec2("describe_subnets", "Subnets[0].SubnetId", Filters=_filters(filters)),
            self._ec2(
                "create_subnet",
                "Subnet.SubnetId",
                VpcId=vpc,
                AvailabilityZone="$ZONE",
                CidrBlock=CIDR.format("$NET.0", 20),
                TagSpecifications=self._tags("subnet", NETWORK_TAG),
            ),
            each=self._name("ZONES"),
        )

    def _security_group(self, name: str, group_name: str, tag: str) -> Iterator[Step]:
        vpc = self._placeholder("VPC")
        yield Step(
            f"{self._region}: the security group {group_name}",
            self._ec2(
                "describe_security_groups",
                "SecurityGroups[0].GroupId",
                Filters=_filters({"vpc-id": vpc, "group-name": group_name}),
            ),
            self._ec2(
                "create_security_group",
                "GroupId",
                GroupName=group_name,
                Description="Made for spotd",
                VpcId=vpc,
                TagSpecifications=self._tags("security-group", tag),
            ),
            name=self._name(name),
        )

    def _ssh_rule(
        self, group: str, source: Mapping[str, str], condition: str, source_text: str
    ) -> Step:
        """Allow SSH from one source."""
        source_range = (
            {"UserIdGroupPairs": [source]} if "GroupId" in source else {"IpRanges": [source]}
        )
        permission = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **source_range}
        query = (
            f"SecurityGroupRules[?!IsEgress && FromPort==`22` && {condition}].SecurityGroupRuleId"
        )
        return Step(
            f"{self._region}: SSH to the security group from {source_text} alone",
            self._rules(group, query),
            self._ec2(
                "authorize_security_group_ingress",
                "Return",
                GroupId=self._placeholder(group),
                IpPermissions=[permission],
            ),
        )

    def _internal_traffic(self) -> Iterator[Step]:
        """Allow traffic between the ranks of a gang; EFA requires rules for both directions."""
        group = self._placeholder("SG")
        permission = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
        for direction, egress in (("ingress", "!IsEgress"), ("egress", "IsEgress")):
            condition = f"{egress} && ReferencedGroupInfo.GroupId=='{group}'"
            yield Step(
                f"{self._region}: {direction} of machines among themselves",
                self._rules("SG", f"SecurityGroupRules[?{condition}].SecurityGroupRuleId"),
                self._ec2(
                    f"authorize_security_group_{direction}",
                    "Return",
                    GroupId=group,
                    IpPermissions=[permission],
                ),
            )

    def _rules(self, group: str, query: str) -> Call:
        filters = _filters({"group-id": self._placeholder(group)})
        return self._ec2("describe_security_group_rules", f"{query} | [0]", Filters=filters)

    def _jump_network(self) -> Iterator[Step]:
        """A subnet for a jump host with a public address, the only source from which machines
        accept SSH."""
        yield self._tagged(
            "JUMP_TABLE", "route-table", "describe_route_tables", "RouteTables[0].RouteTableId",
            "create_route_table", "RouteTable.RouteTableId", {"VpcId": self._placeholder("VPC")},
            tag=JUMP_TAG,
        )  # fmt: skip
        yield from self._gateway("JUMP_TABLE")
        subnet_parameters = {
            "VpcId": self._placeholder("VPC"),
            "CidrBlock": CIDR.format("255.0", 24),
        }
        yield self._tagged(
            "JUMP_SUBNET", "subnet", "describe_subnets", "Subnets[0].SubnetId",
            "create_subnet", "Subnet.SubnetId", subnet_parameters, tag=JUMP_TAG,
        )  # fmt: skip
        table, subnet = self._placeholder("JUMP_TABLE"), self._placeholder("JUMP_SUBNET")
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
        yield from self._security_group("JUMP_SG", JUMP_GROUP, JUMP_TAG)
        box = self._box
        yield self._ssh_rule("JUMP_SG", {"CidrIp": box}, f"CidrIpv4=='{box}'", box)
        jump = self._placeholder("JUMP_SG")
        condition = f"ReferencedGroupInfo.GroupId=='{jump}'"
        yield self._ssh_rule("SG", {"GroupId": jump}, condition, "the jump host")

    def _tagged(
        self, name: str, kind: str, check_operation: str, check_query: str,
        create_operation: str, create_query: str, parameters: Mapping[str, Any],
        tag: str = NETWORK_TAG,
    ) -> Step:  # fmt: skip
        """A resource that is found by its tag."""
        tagged = _filters({f"tag:{tag}": self._kind})
        tags = self._tags(kind, tag)
        suffix = " of the jump host" if tag == JUMP_TAG else ""
        return Step(
            f"{self._region}: its {kind.replace('-', ' ')}{suffix}",
            self._ec2(check_operation, check_query, Filters=tagged),
            self._ec2(create_operation, create_query, **parameters, TagSpecifications=tags),
            name=self._name(name),
        )

    def _tags(self, kind: str, tag: str) -> list[dict[str, Any]]:
        pairs = [{"Key": tag, "Value": self._kind}, {"Key": "Name", "Value": "spotd"}]
        return [{"ResourceType": kind, "Tags": pairs}]

    def _ec2(self, operation: str, query: str, **parameters: Any) -> Call:
        return Call(self._region, "ec2", operation, parameters, query)

    def _name(self, name: str) -> str:
        return regional_name(self._region, name)

    def _placeholder(self, name: str) -> str:
        return f"${self._name(name)}"


def _queue(region: str, name: str) -> Iterator[Step]:
    """A queue, and the rule that fills it with events of every machine in the account: rules cannot
    be limited to a tag."""
    url, arn, rule = (
        f"${regional_name(region, name_)}" for name_ in ("QUEUE", "QUEUE_ARN", "RULE")
    )

    def sqs(operation: str, query: str, **parameters: Any) -> Call:
        return Call(region, "sqs", operation, parameters, query)

    def events(operation: str, query: str, **parameters: Any) -> Call:
        return Call(region, "events", operation, parameters, query)

    # One hour is enough: a warning is useless after two minutes.
    attributes_ = {"MessageRetentionPeriod": "3600"}
    yield Step(
        f"{region}: the queue {name}",
        sqs("get_queue_url", "QueueUrl", QueueName=name),
        sqs("create_queue", "QueueUrl", QueueName=name, Attributes=attributes_),
        name=regional_name(region, "QUEUE"),
    )
    attributes = {"QueueUrl": url, "AttributeNames": ["QueueArn", "Policy"]}
    get_arn = sqs("get_queue_attributes", "Attributes.QueueArn", **attributes)
    yield Step(f"{region}: the queue's ARN", get_arn, name=regional_name(region, "QUEUE_ARN"))
    pattern = json.dumps({"source": ["aws.ec2"], "detail-type": [*DETAIL_TYPES]})
    yield Step(
        f"{region}: the rule {EVENT_RULE} for warnings of interruptions",
        events("describe_rule", "Arn", Name=EVENT_RULE),
        events("put_rule", "RuleArn", Name=EVENT_RULE, EventPattern=pattern, State="ENABLED"),
        name=regional_name(region, "RULE"),
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
        events("list_targets_by_rule", f"Targets[?Arn=='{arn}'].Id | [0]", Rule=EVENT_RULE),
        events("put_targets", "", Rule=EVENT_RULE, Targets=[{"Id": "spotd", "Arn": arn}]),
    )


def queue_policy(queue_arn: str, rule_arn: str) -> Document:
    """Allow EventBridge to send the events of a rule to the queue."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule_arn}},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def regional_name(region: str, name: str) -> str:
    """Return the name of a region's resource in steps, like VPC_US_EAST_1."""
    return f"{name}_{region.upper().replace('-', '_')}"


def _filters(conditions: Mapping[str, str]) -> Sequence[dict[str, Any]]:
    return [{"Name": name, "Values": [value]} for name, value in conditions.items()]
