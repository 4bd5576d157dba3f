"""Convert `resources` of a job file to offer requests, one for each alternative machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from providers.base import CapacityType, OfferRequest
from spotd.base.errors import nearest, suggest
from spotd.base.validation import Path
from spotd.domain.preferences import NO_PREFERENCES, Preferences
from spotd.spec.file import AllResources, JobFile, Resources
from spotd.spec.findings import Findings
from spotd.spec.quantities import AtLeast

# Spelled as in the clouds' catalogs. Other names are passed on unchanged, with a warning.
ACCELERATORS = (
    "A10",
    "A10G",
    "A100",
    "A100-80GB",
    "A6000",
    "B200",
    "B300",
    "GB200",
    "GH200",
    "H100",
    "H100-SXM",
    "H100-NVLINK",
    "H200",
    "H200-SXM",
    "K80",
    "L4",
    "L40",
    "L40S",
    "M60",
    "P100",
    "P4",
    "RTX3090",
    "RTX4090",
    "RTX5090",
    "RTX6000-Ada",
    "RTXPRO6000",
    "T4",
    "T4g",
    "V100",
    "V100-32GB",
    "MI250",
    "MI300X",
    "MI325X",
    "Gaudi HL-205",
    "Inferentia",
    "Inferentia2",
    "Trainium",
    "Trainium2",
)
_CLUSTERS = frozenset({"kubernetes", "k8s", "slurm", "ssh"})
_LOCATION_KEYS = frozenset({"infra", "cloud", "region", "zone"})
_CAPACITY = {
    None: (CapacityType.SPOT, CapacityType.ON_DEMAND),
    True: (CapacityType.SPOT,),
    False: (CapacityType.ON_DEMAND,),
}


T = TypeVar("T")


@dataclass(frozen=True)
class MachineKind:
    """One alternative of `any_of` or `ordered`, with the values inherited from `resources`.

    `root` is the key path of `resources`, `path` that of the alternative.
    """

    resources: Resources
    root: Path
    path: Path = ()
    own_keys: frozenset[str] = frozenset()  # the keys that it sets itself

    def key_path(self, key: str) -> Path:
        """Return the path of `key` in the file, for this machine."""
        return (*(self.path if key in self.own_keys else self.root), key)


@dataclass(frozen=True)
class MachineRequest:
    """The machines that may run the job. Sizes are in GiB; 0 and "" mean not set."""

    alternatives: tuple[OfferRequest, ...]
    ordered: bool
    image_id: str
    disk_gib: int
    max_hourly_microusd: int
    restarts: int | None  # job_recovery.max_restarts_on_errors
    exit_codes: tuple[int, ...] | None  # job_recovery.recover_on_exit_codes
    capacity_ordered: bool = False
    preferences: Preferences = NO_PREFERENCES


def read_resources(
    resources: AllResources, clouds: Collection[str] | None, findings: Findings, root: Path
) -> MachineRequest:
    """Return the machines that `resources` at the key path `root` describes.

    `clouds` are the names and kinds of the configured providers; None if they are not known.
    """
    kinds = list(_kinds(resources, findings, root))
    alternatives: list[OfferRequest] = []
    for kind in kinds:
        request = _offer_request(kind, clouds, findings)
        named = kind.resources.accelerators
        for name, count in named.options if named else (("", 0),):
            spelled = _canonical_accelerator(name, kind, findings)
            alternative = replace(request, accelerator=spelled, accelerator_count=count)
            if alternative not in alternatives:
                alternatives.append(alternative)
    if not resources.model_fields_set:
        findings.warn(root, "is missing: the cheapest machine of any kind is used")
    image = _shared_value(findings, "image_id", kinds, lambda kind: kind.image_id)
    recovery = _shared_value(findings, "job_recovery", kinds, lambda kind: kind.job_recovery)
    codes = recovery.recover_on_exit_codes if recovery else None
    listed = resources.accelerators is not None and resources.accelerators.ordered
    return MachineRequest(
        alternatives=tuple(alternatives),
        ordered=resources.ordered is not None or (listed and resources.any_of is None),
        image_id=image.name if image else "",
        disk_gib=_shared_value(findings, "disk_size", kinds, lambda kind: kind.disk_size) or 0,
        max_hourly_microusd=(
            _shared_value(findings, "max_hourly_cost", kinds, lambda kind: kind.max_hourly_cost)
            or 0
        ),
        restarts=recovery.max_restarts_on_errors if recovery else None,
        exit_codes=None if codes is None else tuple(codes),
    )


def apply_capacity(request: MachineRequest, file: JobFile, findings: Findings) -> MachineRequest:
    """Return `request` with the capacity types of `spotd.capacity` for every machine."""
    named = file.spotd.capacity
    if named is None:
        return request
    path = ("spotd", "capacity")
    kinds = tuple(CapacityType(name) for name in dict.fromkeys(named))
    if not kinds:
        findings.refuse(path, "the list is empty", "name one, or leave it out")
    resources = file.resources
    listed = (*(resources.any_of or ()), *(resources.ordered or ()))
    if any(resource.use_spot is not None for resource in (resources, *listed)):
        findings.refuse(path, "conflicts with use_spot, which sets the same", "keep one")
    alternatives = tuple(
        replace(alternative, capacity_types=kinds) for alternative in request.alternatives
    )
    distinct = tuple(dict.fromkeys(alternatives))
    return replace(request, alternatives=distinct, capacity_ordered=len(kinds) > 1)


def _kinds(resources: AllResources, findings: Findings, root: Path) -> Iterator[MachineKind]:
    if resources.any_of is not None and resources.ordered is not None:
        findings.refuse((*root, "ordered"), "any_of and ordered exclude each other", "keep one")
    name = "any_of" if resources.any_of is not None else "ordered"
    items = resources.any_of if resources.any_of is not None else resources.ordered
    if items is None:
        yield MachineKind(resources, root)
        return
    if not items:
        findings.refuse((*root, name), "the list is empty", "name a machine, or leave it out")
    for index, item in enumerate(items):
        explicit = {key: getattr(item, key) for key in item.model_fields_set}
        if explicit.keys() & _LOCATION_KEYS:
            # Location keys are inherited all or none: a mix of two locations would name a third.
            explicit = dict.fromkeys(_LOCATION_KEYS) | explicit
        yield MachineKind(
            resources.model_copy(update=explicit), root, (*root, name, index), frozenset(explicit)
        )


def _shared_value(
    findings: Findings, key: str, kinds: list[MachineKind], get: Callable[[Resources], T | None]
) -> T | None:
    """Return a value that belongs to the job, and report it if the alternatives differ in it."""
    if not kinds:
        return None
    first = get(kinds[0].resources)
    for kind in kinds:
        if get(kind.resources) != first:
            message = "differs between alternatives, but belongs to the whole job"
            findings.refuse((*kind.path, key), message, "set it once, under resources")
            break
    return first


def _offer_request(
    kind: MachineKind, clouds: Collection[str] | None, findings: Findings
) -> OfferRequest:
    machine = kind.resources
    cloud, region, zone = _infra(kind, findings)
    path = kind.key_path("infra" if machine.infra else "cloud")
    if cloud in _CLUSTERS:
        message = f"spotd rents machines; it does not run on {cloud}"
        findings.refuse(path, message, "name a cloud, or leave it out")
    elif cloud and clouds is not None and cloud not in clouds:
        findings.refuse(path, f"no provider {cloud!r} is configured", suggest(cloud, clouds))
    if machine.image_id and machine.image_id.region:
        region = region or machine.image_id.region
    cpus = machine.cpus or AtLeast(0.0)
    memory = machine.memory or AtLeast(0.0)
    if memory.per_cpu and not cpus.amount:
        findings.refuse(
            kind.key_path("memory"), "is memory per CPU, but cpus is missing", "add cpus"
        )
    return OfferRequest(
        cpus=cpus.amount,
        memory_gib=memory.amount * cpus.amount if memory.per_cpu else memory.amount,
        instance_type=machine.instance_type or "",
        cloud=cloud,
        region=region,
        zone=zone,
        capacity_types=_CAPACITY[machine.use_spot],
    )


def _infra(kind: MachineKind, findings: Findings) -> tuple[str, str, str]:
    """Return (cloud, region, zone), "" for any."""
    machine = kind.resources
    if machine.infra is None:
        return (machine.cloud or "").lower(), machine.region or "", machine.zone or ""
    if machine.cloud or machine.region or machine.zone:
        findings.refuse(
            kind.key_path("infra"), "excludes cloud, region and zone", "keep one of the two"
        )
    parts = machine.infra.strip().split("/")
    if parts[0].lower() in _CLUSTERS:
        parts = parts[:1]  # what follows is a context, which may contain slashes
    if len(parts) > 3 or not all(parts):
        message = f"{machine.infra!r} is not a valid place"
        findings.refuse(kind.key_path("infra"), message, "write cloud/region/zone, * for any")
    cloud, region, zone = (*("" if part == "*" else part for part in parts), "", "", "")[:3]
    return cloud.lower(), region, zone


def _canonical_accelerator(name: str, kind: MachineKind, findings: Findings) -> str:
    """Return an accelerator as the catalogs spell it; an unknown name is returned unchanged."""
    by_fold = {known.casefold(): known for known in ACCELERATORS}
    if not name or name.lower().startswith("tpu-"):
        return name
    if name.casefold() in by_fold:
        return by_fold[name.casefold()]
    suggestion = nearest(name, ACCELERATORS)
    findings.warn(
        kind.key_path("accelerators"),
        f"{name!r} is not an accelerator that spotd knows; it is requested as written",
        f"did you mean {suggestion!r}?" if suggestion else "",
    )
    return name
