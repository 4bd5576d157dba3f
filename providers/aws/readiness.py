"""Whether AWS would let us do our work: rights by dry runs; quotas, image and network as they are
now. A dry run is answered with an error, by which EC2 says that the call would be taken."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from providers.aws.clients import Clients
from providers.aws.listing import DEPLOYMENT_TAG, instances_of, tag_filter
from providers.aws.network import NETWORK_TAG
from providers.aws.policy import LOOKED_AT
from providers.aws.settings import Settings
from providers.base import AuthError, CapacityType, LaunchRequest, ProviderError, UnpreparedError
from providers.readiness import (
    CapacityNeed,
    Finding,
    Grade,
    bad,
    clock,
    doubtful,
    good,
    login,
    quota,
    side_by_side,
    trial,
    tried,
)

WOULD = "DryRunOperation"
_SPOT, _PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND
# (types, how they are sold) -> the quota that they count against, in vCPUs: the codes and names of
# Service Quotas for EC2. The first that fits.
QUOTAS: tuple[tuple[str, CapacityType, str, str], ...] = (
    ("p5*", _SPOT, "L-C4BD4855", "All P5 Spot Instance Requests"),
    ("p[234]*", _SPOT, "L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    ("p[2345]*", _PLAIN, "L-417A185B", "Running On-Demand P instances"),
    ("g[0-9]*", _SPOT, "L-3819A6DF", "All G and VT Spot Instance Requests"),
    ("g[0-9]*", _PLAIN, "L-DB2E81BA", "Running On-Demand G and VT instances"),
    ("[acdhmrtz][0-9]*", _SPOT, "L-34B43A08", "All Standard Spot Instance Requests"),
    ("[acdhmrtz][0-9]*", _PLAIN, "L-1216C47A", "Running On-Demand Standard instances"),
)
# What a call must have to be one at all: EC2 looks at the rights after that.
_REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "GetSpotPlacementScores": {"InstanceTypes": ["p5.48xlarge"], "TargetCapacity": 1},
}
_CREDENTIALS = "see that `aws sts get-caller-identity` works as the user that runs spotd"
_POLICY = "give the box the role of `spotctl doctor --policy aws`, or `spotctl init aws --apply`"

Body = Callable[[LaunchRequest, Mapping[str, str]], dict[str, Any]]


class ReadinessCheck:
    """Of one provider; `body` makes the parameters of RunInstances."""

    def __init__(self, clients: Clients, settings: Settings, deployment: str, body: Body) -> None:
        self._clients = clients
        self._settings = settings
        self._deployment = deployment
        self._body = body

    def run(self, needs: Sequence[CapacityNeed]) -> list[Finding]:
        """Who we are first: whoever is nobody may do nothing."""
        who = tried("credentials", _CREDENTIALS, self._credentials)
        if who[0].grade is Grade.FAIL:
            return who
        here: defaultdict[str, list[CapacityNeed]] = defaultdict(list)
        for need in needs:
            here[need.region].append(need)
        looks = []
        for region in self._settings.regions:
            looks += [
                partial(self._permissions, region, here[region]),
                partial(self._quotas, region, here[region]),
                partial(self._image, region, here[region]),
                partial(self._network, region),
            ]
            if self._settings.queue:
                looks.append(partial(self._queue, region))
        return [*who, *side_by_side(looks)]

    def _credentials(self) -> Iterator[Finding]:
        region, before_s = self._settings.regions[0], time.time()
        answer = self._clients.call(region, "get_caller_identity", service="sts")
        after_s = time.time()
        how, lasts = self._clients.credentials()
        text = f"{answer.get('Arn')}, account {answer.get('Account')} (by {how})"
        if lasts:
            yield good("credentials", text)
        else:
            yield doubtful(
                "credentials",
                f"{text}: temporary, and nobody renews them",
                "a role of the box's machine, SSO or `credential_process`: the SDK renews those",
            )
        headers = (answer.get("ResponseMetadata") or {}).get("HTTPHeaders") or {}
        yield from clock("AWS", str(headers.get("date", "")), before_s, after_s)

    # --- permissions

    def _permissions(self, region: str, needs: Sequence[CapacityNeed]) -> list[Finding]:
        return tried("permissions", _POLICY, lambda: self._try_rights(region, needs), region)

    def _try_rights(self, region: str, needs: Sequence[CapacityNeed]) -> Iterator[Finding]:
        calls: dict[str, Callable[[], dict[str, Any]]] = {
            action: partial(self._dry, region, action, **_REQUIRED.get(action, {}))
            for action in LOOKED_AT
        }
        refused = [action for action, call in calls.items() if not self._would(call)]
        may = [f"{len(calls) - len(refused)} of {len(calls)} reads"]
        if needs:
            if self._would(partial(self._launch, region, needs[0])):
                may.append(
                    f"RunInstances ({needs[0].instance_type}, {needs[0].capacity_type.value})"
                )
            else:
                refused.append("RunInstances")
        untried = [] if needs else ["RunInstances (nothing on sale here fits)"]
        ours = self._ours(region)
        if ours:
            end = partial(self._dry, region, "TerminateInstances", InstanceIds=[ours])
            (may if self._would(end) else refused).append("TerminateInstances")
        else:
            untried.append("TerminateInstances (there is no machine to try it on)")
        told = f"dry runs allow {', '.join(may)}"
        told += f"; not tried: {', '.join(untried)}" if untried else ""
        if refused:
            yield bad("permissions", f"refused: {', '.join(refused)}; {told}", _POLICY, region)
        else:
            yield good("permissions", told, region)

    def _launch(self, region: str, need: CapacityNeed) -> dict[str, Any]:
        body = self._body(trial(need), {DEPLOYMENT_TAG: self._deployment})
        return self._clients.call(region, "run_instances", **body, DryRun=True)

    def _dry(self, region: str, action: str, **parameters: Any) -> dict[str, Any]:
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in action).lstrip("_")
        return self._clients.call(region, name, **parameters, DryRun=True)

    def _would(self, call: Callable[[], object]) -> bool:
        """Whether it would be taken. Raises ProviderError for what says nothing about rights."""
        try:
            call()
        except UnpreparedError:
            return True  # told with the network, or with the image
        except AuthError:
            return False
        except ProviderError as error:
            if error.code != WOULD:
                raise
        return True

    def _ours(self, region: str) -> str:
        """A machine of the deployment's; "" when it has none here."""
        filters = [
            tag_filter(self._deployment),
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
        try:
            rows = self._clients.pages(
                region, "describe_instances", "Reservations", Filters=filters
            )
        except AuthError:
            return ""  # told with the reads
        return next((str(row["InstanceId"]) for row in instances_of(rows)), "")

    # --- quotas

    def _quotas(self, region: str, needs: Sequence[CapacityNeed]) -> list[Finding]:
        asked: defaultdict[tuple[str, str], list[CapacityNeed]] = defaultdict(list)
        unknown: dict[str, None] = {}
        for need in needs:
            found = quota_of(need)
            if found is not None:
                asked[found].append(need)
            elif need.capacity_type in (_SPOT, _PLAIN):
                unknown[f"{need.instance_type} ({need.capacity_type.value})"] = None
        told = []
        for (code, name), some in asked.items():
            look = partial(self._quota, region, code, name, some)
            told += tried("quota", _POLICY, look, region)
        if unknown:
            text = f"which quota counts {', '.join(unknown)} is not known here"
            told.append(doubtful("quota", text, "look at Service Quotas of EC2", region))
        return told

    def _quota(
        self, region: str, code: str, name: str, needs: Sequence[CapacityNeed]
    ) -> Iterator[Finding]:
        answer = self._clients.call(
            region,
            "get_service_quota",
            service="service-quotas",
            ServiceCode="ec2",
            QuotaCode=code,
        )
        limit = float(answer["Quota"]["Value"])
        asked = max(need.cpus * need.count for need in needs)
        fix = (
            "aws service-quotas request-service-quota-increase --service-code ec2 "
            f"--quota-code {code} --desired-value {asked:g} --region {region}"
        )
        yield quota(f"{name} ({code})", limit, "vCPUs", needs, lambda n: n.cpus, fix, region)

    # --- image and network

    def _image(self, region: str, needs: Sequence[CapacityNeed]) -> list[Finding]:
        fix = "set `image` of the provider to one that the region has"
        return tried("image", fix, lambda: self._look_at_image(region, needs, fix), region)

    def _look_at_image(
        self, region: str, needs: Sequence[CapacityNeed], fix: str
    ) -> Iterator[Finding]:
        named = ami = self._settings.image
        if named.startswith("ssm:"):
            parameter = named.removeprefix("ssm:")
            answer = self._clients.call(region, "get_parameter", service="ssm", Name=parameter)
            ami = str(answer["Parameter"]["Value"])
        rows = self._clients.pages(region, "describe_images", "Images", ImageIds=[ami])
        if not rows or rows[0].get("State") not in (None, "available"):
            yield bad("image", f"{ami} ({named}) is not to be had", fix, region)
            return
        made_for = str(rows[0].get("Architecture") or "x86_64")
        kinds = sorted({need.instance_type for need in needs})
        others = self._other_architectures(region, kinds, made_for) if kinds else []
        if others:
            text = f"{ami} is made for {made_for}, and {', '.join(others)} is not"
            yield bad("image", text, "an image for each: `image_id` of the job", region)
        else:
            yield good("image", f"{ami}, {made_for}", region)

    def _other_architectures(self, region: str, kinds: Sequence[str], wanted: str) -> list[str]:
        rows = self._clients.pages(
            region, "describe_instance_types", "InstanceTypes", InstanceTypes=[*kinds]
        )
        return [
            str(row["InstanceType"])
            for row in rows
            if wanted
            not in (row.get("ProcessorInfo") or {}).get("SupportedArchitectures", [wanted])
        ]

    def _network(self, region: str) -> list[Finding]:
        kind = self._settings.network
        fix = f"run `spotctl init aws --network {kind} --region {region} --box ADDRESS/32 --apply`"
        return tried("network", fix, lambda: self._look_at_network(region, kind, fix), region)

    def _look_at_network(self, region: str, kind: str, fix: str) -> Iterator[Finding]:
        tagged = [{"Name": f"tag:{NETWORK_TAG}", "Values": [kind]}]
        subnets = self._clients.pages(region, "describe_subnets", "Subnets", Filters=tagged)
        groups = self._clients.pages(
            region, "describe_security_groups", "SecurityGroups", Filters=tagged
        )
        tag = f"{NETWORK_TAG}={kind}"
        if not subnets or not groups:
            missing = "subnet" if not subnets else "security group"
            yield bad("network", f"no {missing} has the tag {tag}", fix, region)
            return
        full = [row["SubnetId"] for row in subnets if row.get("AvailableIpAddressCount") == 0]
        if full:
            text = f"no address is left in {', '.join(full)}"
            yield doubtful(
                "network", text, "end what has the addresses, or a larger subnet", region
            )
        sources = [*_who_logs_in(groups)]
        zones = ", ".join(sorted({str(row["AvailabilityZone"]) for row in subnets}))
        narrower = "take 0.0.0.0/0 out, and give --box"
        yield login(sources, f"subnets in {zones}", fix, narrower, region)

    def _queue(self, region: str) -> list[Finding]:
        name = self._settings.queue
        fix = f"run `spotctl init aws --queue {name} --region {region} --box ADDRESS/32 --apply`"

        def look() -> Iterator[Finding]:
            self._clients.call(region, "get_queue_url", service="sqs", QueueName=name)
            yield good("queue", f"{name} is there", region)

        return tried("queue", fix, look, region)


def quota_of(need: CapacityNeed) -> tuple[str, str] | None:
    """(code, name) of the quota that a machine counts against; None where it is not known."""
    for pattern, capacity, code, name in QUOTAS:
        if capacity is need.capacity_type and fnmatchcase(need.instance_type, pattern):
            return code, name
    return None


def _who_logs_in(groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """From where a rule lets TCP 22 in: blocks, and other groups."""
    own = {group.get("GroupId") for group in groups}
    for group in groups:
        for rule in group.get("IpPermissions") or ():
            every = rule.get("IpProtocol") == "-1"
            if not every and not rule.get("FromPort", 0) <= 22 <= rule.get("ToPort", 0):
                continue
            yield from (str(one["CidrIp"]) for one in rule.get("IpRanges") or ())
            yield from (str(one["CidrIpv6"]) for one in rule.get("Ipv6Ranges") or ())
            for pair in rule.get("UserIdGroupPairs") or ():
                if pair.get("GroupId") not in own:
                    yield str(pair.get("GroupId"))
