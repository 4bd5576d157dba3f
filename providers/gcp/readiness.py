"""Whether Google Cloud would let us do our work: rights that hold for the whole project, quotas,
image and network as they are now. Compute Engine has no dry run of a create."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from providers.base import CapacityType, ProviderError
from providers.gcp.clients import FIX, Clients
from providers.gcp.codes import NOT_FOUND
from providers.gcp.launch import FIREWALL_TAG
from providers.gcp.policy import policies
from providers.gcp.settings import Settings
from providers.iam.policy import CONTROL, PolicyFacts
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
    tried,
)

SERVICES = tuple(
    f"{name}.googleapis.com"
    for name in ("compute", "cloudbilling", "cloudquotas", "cloudresourcemanager")
)
_SPOT, _PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND
# Types -> what Cloud Quotas calls their accelerator, and their family where the quota of machines
# on demand is one of families.
_CARDS = (
    ("a3-highgpu-*", "H100", "NVIDIA_H100"),
    ("a3-edgegpu-*", "H100", "NVIDIA_H100"),
    ("a3-megagpu-*", "H100-MEGA", "NVIDIA_H100_MEGA"),
    ("a3-ultragpu-*", "H200", "NVIDIA_H200"),
    ("a4-*", "B200", "NVIDIA_B200"),
    ("a2-ultragpu-*", "A100-80GB", ""),
    ("a2-*", "A100", ""),
    ("g2-*", "L4", ""),
)
_OF_FAMILIES = "GPUS-PER-GPU-FAMILY-per-project-region"
_EVERYWHERE = "GPUS-ALL-REGIONS-per-project"
_IMAGE = re.compile(r"projects/([^/]+)/global/images/(family/)?([^/]+)")

Counted = tuple[str, str, str]  # quota, region ("" for all together), family


class ReadinessCheck:
    """Of one provider."""

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
        """Who we are first: whoever is nobody may do nothing."""
        who = tried("credentials", f"{FIX}; {self._policy}", self._credentials)
        if who[0].grade is Grade.FAIL:
            return who
        looks = [
            partial(tried, "image", "set `image` of the provider to one that is there", self._image)
        ]
        for asked, some in _counted(needs).items():
            look = partial(self._quota, asked, some)
            looks.append(partial(tried, "quota", self._policy, look, asked[1]))
        for region in self._settings.regions:
            look = partial(self._network, region)
            looks.append(partial(tried, "network", self._policy, look, region))
        return [*who, *_unknown(needs), *side_by_side(looks)]

    def _credentials(self) -> Iterator[Finding]:
        """Rights of the whole project are all that can be asked for without a machine."""
        everywhere = [_rights(grant) for grant in self._grants if "condition" not in grant]
        asked = [right for rights in everywhere for right in rights]
        bound = sum(len(_rights(grant)) for grant in self._grants if "condition" in grant)
        before_s = time.time()
        answer, headers = self._clients.ask(
            "cloudresourcemanager",
            "POST",
            f"/v3/projects/{self._project}:testIamPermissions",
            {"permissions": asked},
        )
        after_s = time.time()
        yield good("credentials", f"{self._clients.who()}, in project {self._project}")
        yield from clock("Google Cloud", str(headers.get("Date", "")), before_s, after_s)
        has = set(answer.get("permissions") or ())
        lacking = [right for right in asked if right not in has]
        told = f"{len(asked) - len(lacking)} of {len(asked)} rights in the project"
        told += f"; not tried: {bound} on things of ours alone, before there are any"
        if lacking:
            text = f"lacking: {', '.join(lacking)}; {told}"
            yield bad("permissions", text, self._policy)
        else:
            yield good("permissions", told)

    def _quota(self, asked: Counted, needs: Sequence[CapacityNeed]) -> Iterator[Finding]:
        name, region, family = asked
        path = (
            f"/v1/projects/{self._project}/locations/global/services/compute.googleapis.com"
            f"/quotaInfos/{name}"
        )
        try:
            answer, _ = self._clients.ask("cloudquotas", "GET", path)
        except ProviderError as error:
            if error.code not in NOT_FOUND and error.code != "HTTP 404":
                raise
            yield doubtful("quota", f"Cloud Quotas knows no {name}", self._console(), region)
            return
        limit = limit_of(answer, region, family)
        if limit is None:
            yield doubtful("quota", f"{name} tells nothing of {region}", self._console(), region)
            return
        per_gpu = name != "CPUS-per-project-region"
        most = max(needs, key=lambda need: _units(need, per_gpu) * need.count)
        where = f" --dimensions=region={region}" if region else ""
        where += f",gpu_family={family}" if family else ""
        fix = (
            "gcloud beta quotas preferences create --service=compute.googleapis.com "
            f"--quota-id={name} --preferred-value={_units(most, per_gpu) * most.count:g}{where} "
            f"--project={self._project}, or {self._console()}"
        )
        unit, of_one = "GPUs" if per_gpu else "vCPUs", partial(_units, per_gpu=per_gpu)
        yield quota(name, limit, unit, needs, of_one, fix, region)

    def _console(self) -> str:
        return f"https://console.cloud.google.com/iam-admin/quotas?project={self._project}"

    def _image(self) -> Iterator[Finding]:
        named = self._settings.image
        parts = _IMAGE.fullmatch(named)
        fix = "set `image` to projects/PROJECT/global/images/NAME, or .../images/family/NAME"
        if parts is None:
            yield bad("image", f"{named} is no image", fix)
            return
        project, by_family, name = parts.groups()
        field, method = ("family", "get_from_family") if by_family else ("image", "get")
        fields: dict[str, Any] = {"project": project, field: name}
        image = self._clients.call("Images", method, **fields)
        if image.status not in ("", "READY") or image.architecture == "ARM64":
            yield bad("image", f"{image.name} is {image.status} {image.architecture}", fix)
        elif image.deprecated.state in ("OBSOLETE", "DELETED"):
            yield bad("image", f"{image.name} is {image.deprecated.state}", fix)
        else:
            yield good("image", f"{image.name}, {(image.architecture or 'X86_64').lower()}")

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
            yield bad("network", text, fix, region)
            return
        if settings.network != "public" and not subnet.private_ip_google_access:
            text = f"machines of {settings.subnetwork} reach no store: no private Google access"
            yield bad("network", text, fix, region)
        sources = sorted(
            {
                source
                for rule in self._clients.rows("Firewalls")
                if _tail(rule.network) == _tail(subnet.network) and _lets_log_in(rule)
                for source in (*rule.source_ranges, *rule.source_tags)
            }
        )
        where, narrower = f"subnetwork {settings.subnetwork}", "take 0.0.0.0/0 out of its rules"
        yield login(sources, where, fix, narrower, region)


def limit_of(answer: Mapping[str, Any], region: str, family: str = "") -> float | None:
    """The limit that holds there, of a QuotaInfo; of several that fit, the one that names more.
    None where none does. Below 0 is no limit."""
    wanted = {"region": region, "gpu_family": family}
    fits: list[tuple[int, float]] = []
    for info in answer.get("dimensionsInfos") or ():
        named = info.get("dimensions") or {}
        value = (info.get("details") or {}).get("value")
        if value is not None and all(wanted.get(key) == told for key, told in named.items()):
            fits.append((len(named), float(value)))
    return max(fits)[1] if fits else None


def _counted(needs: Sequence[CapacityNeed]) -> dict[Counted, list[CapacityNeed]]:
    """By the quota that counts them. A machine on demand with GPUs is counted twice."""
    found: defaultdict[Counted, list[CapacityNeed]] = defaultdict(list)
    for need in needs:
        for name, everywhere, family in _quotas_of(need):
            found[name, "" if everywhere else need.region, family].append(need)
    return dict(found)


def _quotas_of(need: CapacityNeed) -> Iterator[tuple[str, bool, str]]:
    """(quota, whether it is one of all regions together, family)."""
    card, family = next(
        (found[1:] for found in _CARDS if fnmatchcase(need.instance_type, found[0])), ("", "")
    )
    if need.capacity_type not in (_SPOT, _PLAIN):
        return
    if not need.accelerator_count and fnmatchcase(need.instance_type, "[en][12]-*"):
        yield "CPUS-per-project-region", False, ""
    elif card and need.capacity_type is _SPOT:
        yield f"PREEMPTIBLE-NVIDIA-{card}-GPUS-per-project-region", False, ""
    elif card:
        name = _OF_FAMILIES if family else f"NVIDIA-{card}-GPUS-per-project-region"
        yield name, False, family
        yield _EVERYWHERE, True, ""


def _unknown(needs: Sequence[CapacityNeed]) -> Iterator[Finding]:
    kinds = {need.instance_type for need in needs if not [*_quotas_of(need)]}
    if kinds:
        text = f"which quota counts {', '.join(sorted(kinds))} is not known here"
        yield doubtful("quota", text, "look at the quotas of Compute Engine")


def _units(need: CapacityNeed, per_gpu: bool) -> float:
    return need.accelerator_count if per_gpu else need.cpus


def _rights(grant: Mapping[str, Any]) -> list[str]:
    """Those of machines: what stores let us do is tried with the stores."""
    return [r for r in grant["includedPermissions"] if not r.startswith("storage.")]


def _lets_log_in(rule: Any) -> bool:
    """Whether a rule is one that lets TCP 22 in to our machines."""
    if rule.direction == "EGRESS" or rule.disabled:
        return False
    if rule.target_tags and FIREWALL_TAG not in rule.target_tags:
        return False
    return any(
        one.I_p_protocol in ("all", "tcp", "6") and (not one.ports or any(map(_has_22, one.ports)))
        for one in rule.allowed
    )


def _has_22(ports: str) -> bool:
    first, _, last = ports.partition("-")
    return int(first) <= 22 <= int(last or first)


def _tail(link: str) -> str:
    return link.rpartition("/projects/")[2]
