"""Readiness checks for AWS: permissions by dry runs; quotas, image and network as they are now.

EC2 answers a dry run with an error; the code DryRunOperation means that the call would succeed.
"""

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
from providers.aws.policy import DRY_RUN_ACTIONS
from providers.aws.settings import Settings
from providers.base import AuthError, CapacityType, LaunchRequest, ProviderError, UnpreparedError
from providers.readiness import (
    CapacityNeed,
    Finding,
    Grade,
    check_clock,
    check_quota,
    check_ssh_access,
    dry_run_request,
    failed,
    passed,
    run_check,
    run_parallel,
    warning,
)

DRY_RUN_OK = "DryRunOperation"
_SPOT, _ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
# (type pattern, capacity type) -> the quota in vCPUs: codes and names of Service Quotas for EC2.
# The first match counts.
QUOTAS: tuple[tuple[str, CapacityType, str, str], ...] = (
    ("p5*", _SPOT, "L-C4BD4855", "All P5 Spot Instance Requests"),
    ("p[234]*", _SPOT, "L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    ("p[2345]*", _ON_DEMAND, "L-417A185B", "Running On-Demand P instances"),
    ("g[0-9]*", _SPOT, "L-3819A6DF", "All G and VT Spot Instance Requests"),
    ("g[0-9]*", _ON_DEMAND, "L-DB2E81BA", "Running On-Demand G and VT instances"),
    ("[acdhmrtz][0-9]*", _SPOT, "L-34B43A08", "All Standard Spot Instance Requests"),
    ("[acdhmrtz][0-9]*", _ON_DEMAND, "L-1216C47A", "Running On-Demand Standard instances"),
)
# Required parameters: EC2 validates them before it checks permissions.
_REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "GetSpotPlacementScores": {"InstanceTypes": ["p5.48xlarge"], "TargetCapacity": 1},
}
_CREDENTIALS_FIX = "check that `aws sts get-caller-identity` works as the user that runs spotd"
_POLICY_FIX = (
    "give the box the role of `spotctl doctor --policy aws`, or `spotctl init aws --apply`"
)

BuildRequest = Callable[[LaunchRequest, Mapping[str, str]], dict[str, Any]]


class ReadinessCheck:
    """The checks of one provider; `build_request` returns the parameters of RunInstances."""

    def __init__(
        self, clients: Clients, settings: Settings, deployment: str, build_request: BuildRequest
    ) -> None:
        self._clients = clients
        self._settings = settings
        self._deployment = deployment
        self._build_request = build_request

    def run(self, needs: Sequence[CapacityNeed]) -> list[Finding]:
        """Run all checks; without valid credentials, only that one."""
        credentials = run_check("credentials", _CREDENTIALS_FIX, self._credentials)
        if credentials[0].grade is Grade.FAIL:
            return credentials
        by_region: defaultdict[str, list[CapacityNeed]] = defaultdict(list)
        for need in needs:
            by_region[need.region].append(need)
        checks = []
        for region in self._settings.regions:
            checks += [
                partial(self._permissions, region, by_region[region]),
                partial(self._quotas, region, by_region[region]),
                partial(self._image, region, by_region[region]),
                partial(self._network, region),
            ]
            if self._settings.queue:
                checks.append(partial(self._queue, region))
        return [*credentials, *run_parallel(checks)]

    def _credentials(self) -> Iterator[Finding]:
        region, before_s = self._settings.regions[0], time.time()
        answer = self._clients.call(region, "get_caller_identity", service="sts")
        after_s = time.time()
        method, permanent = self._clients.credentials()
        text = f"{answer.get('Arn')}, account {answer.get('Account')} (by {method})"
        if permanent:
            yield passed("credentials", text)
        else:
            yield warning(
                "credentials",
                f"{text}: temporary, and not renewed",
                "a role of the box's machine, SSO or `credential_process`: the SDK renews those",
            )
        headers = (answer.get("ResponseMetadata") or {}).get("HTTPHeaders") or {}
        yield from check_clock("AWS", str(headers.get("date", "")), before_s, after_s)

    # --- permissions

    def _permissions(self, region: str, needs: Sequence[CapacityNeed]) -> list[Finding]:
        return run_check(
            "permissions", _POLICY_FIX, lambda: self._check_permissions(region, needs), region
        )

    def _check_permissions(self, region: str, needs: Sequence[CapacityNeed]) -> Iterator[Finding]:
        calls: dict[str, Callable[[], dict[str, Any]]] = {
            action: partial(self._dry_run, region, action, **_REQUIRED.get(action, {}))
            for action in DRY_RUN_ACTIONS
        }
        refused = [action for action, call in calls.items() if not self._is_allowed(call)]
        allowed = [f"{len(calls) - len(refused)} of {len(calls)} reads"]
        if needs:
            if self._is_allowed(partial(self._dry_run_launch, region, needs[0])):
                allowed.append(
                    f"RunInstances ({needs[0].instance_type}, {needs[0].capacity_type.value})"
                )
            else:
                refused.append("RunInstances")
        untried = [] if needs else ["RunInstances (no offer here fits)"]
        instance_id = self._own_instance(region)
        if instance_id:
            terminate = partial(
                self._dry_run, region, "TerminateInstances", InstanceIds=[instance_id]
            )
            (allowed if self._is_allowed(terminate) else refused).append("TerminateInstances")
        else:
            untried.append("TerminateInstances (there is no machine to test it with)")
        message = f"dry runs allow {', '.join(allowed)}"
        message += f"; not tried: {', '.join(untried)}" if untried else ""
        if refused:
            yield failed(
                "permissions", f"refused: {', '.join(refused)}; {message}", _POLICY_FIX, region
            )
        else:
            yield passed("permissions", message, region)

    def _dry_run_launch(self, region: str, need: CapacityNeed) -> dict[str, Any]:
        parameters = self._build_request(dry_run_request(need), {DEPLOYMENT_TAG: self._deployment})
        return self._clients.call(region, "run_instances", **parameters, DryRun=True)

    def _dry_run(self, region: str, action: str, **parameters: Any) -> dict[str, Any]:
        operation = "".join(
            f"_{char.lower()}" if char.isupper() else char for char in action
        ).lstrip("_")
        return self._clients.call(region, operation, **parameters, DryRun=True)

    def _is_allowed(self, call: Callable[[], object]) -> bool:
        """Whether the call would be permitted. Raises ProviderError for an answer that does not
        tell."""
        try:
            call()
        except UnpreparedError:
            return True  # reported by the network check or the image check
        except AuthError:
            return False
        except ProviderError as error:
            if error.code != DRY_RUN_OK:
                raise
        return True

    def _own_instance(self, region: str) -> str:
        """Return a machine of the deployment; "" when it has none in the region."""
        filters = [
            tag_filter(self._deployment),
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
        try:
            rows = self._clients.pages(
                region, "describe_instances", "Reservations", Filters=filters
            )
        except AuthError:
            return ""  # reported with the reads
        return next((str(row["InstanceId"]) for row in instances_of(rows)), "")

    # --- quotas

    def _quotas(self, region: str, needs: Sequence[CapacityNeed]) -> list[Finding]:
        needs_by_quota: defaultdict[tuple[str, str], list[CapacityNeed]] = defaultdict(list)
        unknown: dict[str, None] = {}
        for need in needs:
            quota = quota_of(need)
            if quota is not None:
                needs_by_quota[quota].append(need)
            elif need.capacity_type in (_SPOT, _ON_DEMAND):
                unknown[f"{need.instance_type} ({need.capacity_type.value})"] = None
        findings = []
        for (code, name), counted in needs_by_quota.items():
            check = partial(self._quota, region, code, name, counted)
            findings += run_check("quota", _POLICY_FIX, check, region)
        if unknown:
            message = f"spotd does not know the quota of {', '.join(unknown)}"
            findings.append(warning("quota", message, "check Service Quotas for EC2", region))
        return findings

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
        needed = max(need.cpus * need.count for need in needs)
        fix = (
            "aws service-quotas request-service-quota-increase --service-code ec2 "
            f"--quota-code {code} --desired-value {needed:g} --region {region}"
        )
        yield check_quota(
            f"{name} ({code})", limit, "vCPUs", needs, lambda need: need.cpus, fix, region
        )

    # --- image and network

    def _image(self, region: str, needs: Sequence[CapacityNeed]) -> list[Finding]:
        fix = "set `image` of the provider to one that the region has"
        return run_check("image", fix, lambda: self._check_image(region, needs, fix), region)

    def _check_image(
        self, region: str, needs: Sequence[CapacityNeed], fix: str
    ) -> Iterator[Finding]:
        configured = ami = self._settings.image
        if configured.startswith("ssm:"):
            parameter = configured.removeprefix("ssm:")
            answer = self._clients.call(region, "get_parameter", service="ssm", Name=parameter)
            ami = str(answer["Parameter"]["Value"])
        rows = self._clients.pages(region, "describe_images", "Images", ImageIds=[ami])
        if not rows or rows[0].get("State") not in (None, "available"):
            yield failed("image", f"{ami} ({configured}) is not available", fix, region)
            return
        architecture = str(rows[0].get("Architecture") or "x86_64")
        types = sorted({need.instance_type for need in needs})
        mismatched = self._other_architectures(region, types, architecture) if types else []
        if mismatched:
            message = f"{ami} is made for {architecture}, and {', '.join(mismatched)} is not"
            yield failed("image", message, "an image for each: `image_id` of the job", region)
        else:
            yield passed("image", f"{ami}, {architecture}", region)

    def _other_architectures(self, region: str, types: Sequence[str], wanted: str) -> list[str]:
        rows = self._clients.pages(
            region, "describe_instance_types", "InstanceTypes", InstanceTypes=[*types]
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
        return run_check("network", fix, lambda: self._check_network(region, kind, fix), region)

    def _check_network(self, region: str, kind: str, fix: str) -> Iterator[Finding]:
        tagged = [{"Name": f"tag:{NETWORK_TAG}", "Values": [kind]}]
        subnets = self._clients.pages(region, "describe_subnets", "Subnets", Filters=tagged)
        groups = self._clients.pages(
            region, "describe_security_groups", "SecurityGroups", Filters=tagged
        )
        tag = f"{NETWORK_TAG}={kind}"
        if not subnets or not groups:
            missing = "subnet" if not subnets else "security group"
            yield failed("network", f"no {missing} has the tag {tag}", fix, region)
            return
        exhausted = [row["SubnetId"] for row in subnets if row.get("AvailableIpAddressCount") == 0]
        if exhausted:
            message = f"no address is left in {', '.join(exhausted)}"
            yield warning(
                "network", message, "end what has the addresses, or a larger subnet", region
            )
        sources = [*_ssh_sources(groups)]
        zones = ", ".join(sorted({str(row["AvailabilityZone"]) for row in subnets}))
        narrow_fix = "remove 0.0.0.0/0, and use --box"
        yield check_ssh_access(sources, f"subnets in {zones}", fix, narrow_fix, region)

    def _queue(self, region: str) -> list[Finding]:
        name = self._settings.queue
        fix = f"run `spotctl init aws --queue {name} --region {region} --box ADDRESS/32 --apply`"

        def check() -> Iterator[Finding]:
            self._clients.call(region, "get_queue_url", service="sqs", QueueName=name)
            yield passed("queue", f"{name} is there", region)

        return run_check("queue", fix, check, region)


def quota_of(need: CapacityNeed) -> tuple[str, str] | None:
    """Return (code, name) of the quota that counts the machine; None where it is unknown."""
    for pattern, capacity, code, name in QUOTAS:
        if capacity is need.capacity_type and fnmatchcase(need.instance_type, pattern):
            return code, name
    return None


def _ssh_sources(groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the sources that may use TCP 22: CIDR blocks, and other security groups."""
    own = {group.get("GroupId") for group in groups}
    for group in groups:
        for rule in group.get("IpPermissions") or ():
            all_protocols = rule.get("IpProtocol") == "-1"
            if not all_protocols and not rule.get("FromPort", 0) <= 22 <= rule.get("ToPort", 0):
                continue
            yield from (str(block["CidrIp"]) for block in rule.get("IpRanges") or ())
            yield from (str(block["CidrIpv6"]) for block in rule.get("Ipv6Ranges") or ())
            for pair in rule.get("UserIdGroupPairs") or ():
                if pair.get("GroupId") not in own:
                    yield str(pair.get("GroupId"))
