"""Readiness checks for Google Cloud: permissions on the whole project; quotas, image and network as
they are now. Compute Engine has no dry run of a create."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from providers.base import CapacityType, ProviderError
from providers.gcp.clients import CREDENTIALS_FIX, Clients
from providers.gcp.codes import NOT_FOUND
from providers.gcp.launch import FIREWALL_TAG
from providers.gcp.policy import policies
from providers.gcp.settings import Settings
from providers.iam.policy import CONTROL, PolicyFacts
from providers.readiness import (
    CapacityNeed,
    Finding,
    Grade,
    check_clock,
    check_quota,
    check_ssh_access,
    failed,
    passed,
    run_check,
    run_parallel,
    warning,
)

SERVICES = tuple(
    f"{name}.googleapis.com"
    for name in ("compute", "cloudbilling", "cloudquotas", "cloudresourcemanager")
)
_SPOT, _ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
# Type pattern -> the accelerator's name in Cloud Quotas, and its family where the on-demand quota
# is per family.
_QUOTA_NAMES = (
    ("a3-highgpu-*", "H100", "NVIDIA_H100"),
    ("a3-edgegpu-*", "H100", "NVIDIA_H100"),
    ("a3-megagpu-*", "H100-MEGA", "NVIDIA_H100_MEGA"),
    ("a3-ultragpu-*", "H200", "NVIDIA_H200"),
    ("a4-*", "B200", "NVIDIA_B200"),
    ("a2-ultragpu-*", "A100-80GB", ""),
    ("a2-*", "A100", ""),
    ("g2-*", "L4", ""),
)
_FAMILY_QUOTA = "GPUS-PER-GPU-FAMILY-per-project-region"
_GLOBAL_QUOTA = "GPUS-ALL-REGIONS-per-project"
_IMAGE = re.compile(r"projects/([^/]+)/global/images/(family/)?([^/]+)")

QuotaKey = tuple[str, str, str]  # quota, region ("" for global), family


class ReadinessCheck:
    """The checks of one provider."""

    def __init__(self, clients: Clients, settings: Settings, deployment: str) -> None:
        self._clients = clients
        self._settings = settings
        facts = PolicyFacts(
            deployment, settings.regions, "", "", account={"project": self._project}
        )
        self._grants = policies(facts)[facts.name(CONTROL)]["grants"]
        self._policy = (
            "give the box the role of `spotctl doctor --policy gcp`, and "
            f"gcloud services enable {' '.join(SERVICES)} --project {self._project}"
        )

    @property
    def _project(self) -> str:
        return self._settings.project

    def run(self, needs: Sequence[CapacityNeed]) -> list[Finding]:
        """Run all checks; without valid credentials, only that one."""
        credentials = run_check(
            "credentials", f"{CREDENTIALS_FIX}; {self._policy}", self._credentials
        )
        if credentials[0].grade is Grade.FAIL:
            return credentials
        checks = [
            partial(
                run_check, "image", "set `image` of the provider to one that is there", self._image
            )
        ]
        for key, counted in _needs_by_quota(needs).items():
            check = partial(self._quota, key, counted)
            checks.append(partial(run_check, "quota", self._policy, check, key[1]))
        for region in self._settings.regions:
            check = partial(self._network, region)
            checks.append(partial(run_check, "network", self._policy, check, region))
        return [*credentials, *_unknown_quotas(needs), *run_parallel(checks)]

    def _credentials(self) -> Iterator[Finding]:
        """Check credentials, clock and permissions; only project-wide permissions can be tested
        without a machine."""
        unconditional = [_permissions(grant) for grant in self._grants if "condition" not in grant]
        permissions = [permission for group in unconditional for permission in group]
        conditional_count = sum(
            len(_permissions(grant)) for grant in self._grants if "condition" in grant
        )
        before_s = time.time()
        answer, headers = self._clients.request(
            "cloudresourcemanager",
            "POST",
            f"/v3/projects/{self._project}:testIamPermissions",
            {"permissions": permissions},
        )
        after_s = time.time()
        yield passed("credentials", f"{self._clients.identity()}, in project {self._project}")
        yield from check_clock("Google Cloud", str(headers.get("Date", "")), before_s, after_s)
        granted = set(answer.get("permissions") or ())
        missing = [permission for permission in permissions if permission not in granted]
        message = (
            f"{len(permissions) - len(missing)} of {len(permissions)} permissions in the project"
        )
        message += (
            f"; not tried: {conditional_count} that apply only to spotd's own resources, "
            "which do not exist yet"
        )
        if missing:
            text = f"missing: {', '.join(missing)}; {message}"
            yield failed("permissions", text, self._policy)
        else:
            yield passed("permissions", message)

    def _quota(self, key: QuotaKey, needs: Sequence[CapacityNeed]) -> Iterator[Finding]:
        name, region, family = key
        path = (
            f"/v1/projects/{self._project}/locations/global/services/compute.googleapis.com"
            f"/quotaInfos/{name}"
        )
        try:
            answer, _ = self._clients.request("cloudquotas", "GET", path)
        except ProviderError as error:
            if error.code not in NOT_FOUND and error.code != "HTTP 404":
                raise
            yield warning("quota", f"Cloud Quotas knows no {name}", self._console(), region)
            return
        limit = limit_of(answer, region, family)
        if limit is None:
            yield warning("quota", f"{name} has no limit for {region}", self._console(), region)
            return
        per_gpu = name != "CPUS-per-project-region"
        largest = max(needs, key=lambda need: _units_per_machine(need, per_gpu) * need.count)
        dimensions = f" --dimensions=region={region}" if region else ""
        dimensions += f",gpu_family={family}" if family else ""
        needed = _units_per_machine(largest, per_gpu) * largest.count
        fix = (
            "gcloud beta quotas preferences create --service=compute.googleapis.com "
            f"--quota-id={name} --preferred-value={needed:g}{dimensions} "
            f"--project={self._project}, or {self._console()}"
        )
        unit = "GPUs" if per_gpu else "vCPUs"
        units_per_machine = partial(_units_per_machine, per_gpu=per_gpu)
        yield check_quota(name, limit, unit, needs, units_per_machine, fix, region)

    def _console(self) -> str:
        return f"https://console.cloud.google.com/iam-admin/quotas?project={self._project}"

    def _image(self) -> Iterator[Finding]:
        configured = self._settings.image
        parts = _IMAGE.fullmatch(configured)
        fix = "set `image` to projects/PROJECT/global/images/NAME, or .../images/family/NAME"
        if parts is None:
            yield failed("image", f"{configured} is not an image", fix)
            return
        project, by_family, name = parts.groups()
        field, method = ("family", "get_from_family") if by_family else ("image", "get")
        fields: dict[str, Any] = {"project": project, field: name}
        image = self._clients.call("Images", method, **fields)
        if image.status not in ("", "READY") or image.architecture == "ARM64":
            yield failed("image", f"{image.name} is {image.status} {image.architecture}", fix)
        elif image.deprecated.state in ("OBSOLETE", "DELETED"):
            yield failed("image", f"{image.name} is {image.deprecated.state}", fix)
        else:
            yield passed("image", f"{image.name}, {(image.architecture or 'X86_64').lower()}")

    def _network(self, region: str) -> Iterator[Finding]:
        settings = self._settings
        fix = f"run `spotctl init gcp --network {settings.network} --region {region}`"
        try:
            subnet = self._clients.call(
                "Subnetworks", "get", region=region, subnetwork=settings.subnetwork
            )
        except ProviderError as error:
            if error.code not in NOT_FOUND:
                raise
            text = f"{region} has no subnetwork {settings.subnetwork}"
            yield failed("network", text, fix, region)
            return
        if settings.network != "public" and not subnet.private_ip_google_access:
            text = f"machines of {settings.subnetwork} reach no store: no private Google access"
            yield failed("network", text, fix, region)
        sources = sorted(
            {
                source
                for rule in self._clients.rows("Firewalls")
                if _resource_path(rule.network) == _resource_path(subnet.network)
                and _allows_ssh(rule)
                for source in (*rule.source_ranges, *rule.source_tags)
            }
        )
        location, narrow_fix = (
            f"subnetwork {settings.subnetwork}",
            "take 0.0.0.0/0 out of its rules",
        )
        yield check_ssh_access(sources, location, fix, narrow_fix, region)


def limit_of(answer: Mapping[str, Any], region: str, family: str = "") -> float | None:
    """Return the limit of a QuotaInfo that applies there; None without one, below 0 for unlimited.

    Of several matches, the one with the most dimensions counts.
    """
    dimensions = {"region": region, "gpu_family": family}
    matches: list[tuple[int, float]] = []
    for info in answer.get("dimensionsInfos") or ():
        info_dimensions = info.get("dimensions") or {}
        value = (info.get("details") or {}).get("value")
        if value is not None and all(
            dimensions.get(key) == value_ for key, value_ in info_dimensions.items()
        ):
            matches.append((len(info_dimensions), float(value)))
    return max(matches)[1] if matches else None


def _needs_by_quota(needs: Sequence[CapacityNeed]) -> dict[QuotaKey, list[CapacityNeed]]:
    """Group needs by the quotas that count them. On-demand machines with GPUs count against two."""
    result: defaultdict[QuotaKey, list[CapacityNeed]] = defaultdict(list)
    for need in needs:
        for name, is_global, family in _quotas_of(need):
            result[name, "" if is_global else need.region, family].append(need)
    return dict(result)


def _quotas_of(need: CapacityNeed) -> Iterator[tuple[str, bool, str]]:
    """Yield (quota, whether it is global, GPU family)."""
    accelerator, family = next(
        (row[1:] for row in _QUOTA_NAMES if fnmatchcase(need.instance_type, row[0])), ("", "")
    )
    if need.capacity_type not in (_SPOT, _ON_DEMAND):
        return
    if not need.accelerator_count and fnmatchcase(need.instance_type, "[en][12]-*"):
        yield "CPUS-per-project-region", False, ""
    elif accelerator and need.capacity_type is _SPOT:
        yield f"PREEMPTIBLE-NVIDIA-{accelerator}-GPUS-per-project-region", False, ""
    elif accelerator:
        name = _FAMILY_QUOTA if family else f"NVIDIA-{accelerator}-GPUS-per-project-region"
        yield name, False, family
        yield _GLOBAL_QUOTA, True, ""


def _unknown_quotas(needs: Sequence[CapacityNeed]) -> Iterator[Finding]:
    types = {need.instance_type for need in needs if not [*_quotas_of(need)]}
    if types:
        text = f"spotd does not know the quota of {', '.join(sorted(types))}"
        yield warning("quota", text, "check the quotas of Compute Engine")


def _units_per_machine(need: CapacityNeed, per_gpu: bool) -> float:
    return need.accelerator_count if per_gpu else need.cpus


def _permissions(grant: Mapping[str, Any]) -> list[str]:
    """Return the compute permissions: storage permissions are tested with the stores."""
    return [r for r in grant["includedPermissions"] if not r.startswith("storage.")]


def _allows_ssh(rule: Any) -> bool:
    """Whether a firewall rule allows TCP 22 to our machines."""
    if rule.direction == "EGRESS" or rule.disabled:
        return False
    if rule.target_tags and FIREWALL_TAG not in rule.target_tags:
        return False
    return any(
        allowed.I_p_protocol in ("all", "tcp", "6")
        and (not allowed.ports or any(map(_includes_22, allowed.ports)))
        for allowed in rule.allowed
    )


def _includes_22(ports: str) -> bool:
    first, _, last = ports.partition("-")
    return int(first) <= 22 <= int(last or first)


def _resource_path(link: str) -> str:
    return link.rpartition("/projects/")[2]
