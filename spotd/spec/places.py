"""From `resources` to what the market is asked for: one request for each way to run the job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from providers.base import CapacityType, OfferRequest
from spotd.base.errors import nearest, suggest
from spotd.base.validation import Path
from spotd.domain.preferences import NO_WISHES, Preferences
from spotd.spec.file import AllResources, JobFile, Resources
from spotd.spec.findings import Findings
from spotd.spec.quantities import AtLeast

# As the clouds' catalogues spell them; other names are passed on with a warning.
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
_PLACE = frozenset({"infra", "cloud", "region", "zone"})
_CAPACITY = {
    None: (CapacityType.SPOT, CapacityType.ON_DEMAND),
    True: (CapacityType.SPOT,),
    False: (CapacityType.ON_DEMAND,),
}


T = TypeVar("T")


@dataclass(frozen=True)
class MachineKind:
    """One machine to choose from, with what it inherits filled in."""

    resources: Resources
    root: Path
    path: Path = ()
    own: frozenset[str] = frozenset()  # the keys that it says itself

    def at(self, key: str) -> Path:
        """Where the file says `key` for this machine."""
        return (*(self.path if key in self.own else self.root), key)


@dataclass(frozen=True)
class MachineRequest:
    """What `resources` comes to. Money in micro-USD, sizes in GiB, 0 and "" when not given."""

    alternatives: tuple[OfferRequest, ...]
    ordered: bool
    image_id: str
    disk_gib: int
    max_hourly_microusd: int
    restarts: int | None  # of job_recovery
    exit_codes: tuple[int, ...] | None
    capacity_ordered: bool = False
    wishes: Preferences = NO_WISHES


def wanted(
    resources: AllResources, clouds: Collection[str] | None, found: Findings, root: Path
) -> MachineRequest:
    """`clouds` are the configured providers' names and makes; None when they are not known."""
    kinds = list(_kinds(resources, found, root))
    alternatives: list[OfferRequest] = []
    for kind in kinds:
        request = _place(kind, clouds, found)
        named = kind.resources.accelerators
        for name, count in named.options if named else (("", 0),):
            spelled = _spell(name, kind, found)
            alternative = replace(request, accelerator=spelled, accelerator_count=count)
            if alternative not in alternatives:
                alternatives.append(alternative)
    if not resources.model_fields_set:
        found.warn(root, "is missing: the cheapest machine of any kind will do")
    image = _agreed(found, "image_id", kinds, lambda kind: kind.image_id)
    recovery = _agreed(found, "job_recovery", kinds, lambda kind: kind.job_recovery)
    codes = recovery.recover_on_exit_codes if recovery else None
    listed = resources.accelerators is not None and resources.accelerators.ordered
    return MachineRequest(
        alternatives=tuple(alternatives),
        ordered=resources.ordered is not None or (listed and resources.any_of is None),
        image_id=image.name if image else "",
        disk_gib=_agreed(found, "disk_size", kinds, lambda kind: kind.disk_size) or 0,
        max_hourly_microusd=(
            _agreed(found, "max_hourly_cost", kinds, lambda kind: kind.max_hourly_cost) or 0
        ),
        restarts=recovery.max_restarts_on_errors if recovery else None,
        exit_codes=None if codes is None else tuple(codes),
    )


def with_capacity(place: MachineRequest, file: JobFile, found: Findings) -> MachineRequest:
    """With the capacity types that the `spotd:` block names, in its order, for every machine."""
    named = file.spotd.capacity
    if named is None:
        return place
    where = ("spotd", "capacity")
    kinds = tuple(CapacityType(name) for name in dict.fromkeys(named))
    if not kinds:
        found.refuse(where, "the list is empty", "name one, or leave it out")
    resources = file.resources
    several = (*(resources.any_of or ()), *(resources.ordered or ()))
    if any(one.use_spot is not None for one in (resources, *several)):
        found.refuse(where, "says how machines are bought, and so does use_spot", "keep one")
    alternatives = tuple(replace(want, capacity_types=kinds) for want in place.alternatives)
    distinct = tuple(dict.fromkeys(alternatives))
    return replace(place, alternatives=distinct, capacity_ordered=len(kinds) > 1)


def _kinds(resources: AllResources, found: Findings, root: Path) -> Iterator[MachineKind]:
    if resources.any_of is not None and resources.ordered is not None:
        found.refuse((*root, "ordered"), "any_of and ordered exclude each other", "keep one")
    name = "any_of" if resources.any_of is not None else "ordered"
    items = resources.any_of if resources.any_of is not None else resources.ordered
    if items is None:
        yield MachineKind(resources, root)
        return
    if not items:
        found.refuse((*root, name), "the list is empty", "name a machine, or leave it out")
    for index, item in enumerate(items):
        given = {key: getattr(item, key) for key in item.model_fields_set}
        if given.keys() & _PLACE:
            # A place is said as a whole: parts of two would name a third.
            given = dict.fromkeys(_PLACE) | given
        yield MachineKind(
            resources.model_copy(update=given), root, (*root, name, index), frozenset(given)
        )


def _agreed(
    found: Findings, key: str, kinds: list[MachineKind], get: Callable[[Resources], T | None]
) -> T | None:
    """The value that all kinds agree on: it belongs to the job, not to one machine."""
    if not kinds:
        return None
    first = get(kinds[0].resources)
    for kind in kinds:
        if get(kind.resources) != first:
            text = "differs between alternatives, but belongs to the whole job"
            found.refuse((*kind.path, key), text, "say it once, under resources")
            break
    return first


def _place(kind: MachineKind, clouds: Collection[str] | None, found: Findings) -> OfferRequest:
    machine = kind.resources
    cloud, region, zone = _infra(kind, found)
    where = kind.at("infra" if machine.infra else "cloud")
    if cloud in _CLUSTERS:
        text = f"spotd rents machines; it does not run on {cloud}"
        found.refuse(where, text, "name a cloud, or leave it out")
    elif cloud and clouds is not None and cloud not in clouds:
        found.refuse(where, f"no provider {cloud!r} is configured", suggest(cloud, clouds))
    if machine.image_id and machine.image_id.region:
        region = region or machine.image_id.region
    cpus = machine.cpus or AtLeast(0.0)
    memory = machine.memory or AtLeast(0.0)
    if memory.per_cpu and not cpus.amount:
        found.refuse(kind.at("memory"), "is for each CPU, but cpus is missing", "add cpus")
    return OfferRequest(
        cpus=cpus.amount,
        memory_gib=memory.amount * cpus.amount if memory.per_cpu else memory.amount,
        instance_type=machine.instance_type or "",
        cloud=cloud,
        region=region,
        zone=zone,
        capacity_types=_CAPACITY[machine.use_spot],
    )


def _infra(kind: MachineKind, found: Findings) -> tuple[str, str, str]:
    """(cloud, region, zone), "" for any."""
    machine = kind.resources
    if machine.infra is None:
        return (machine.cloud or "").lower(), machine.region or "", machine.zone or ""
    if machine.cloud or machine.region or machine.zone:
        found.refuse(kind.at("infra"), "excludes cloud, region and zone", "keep one of the two")
    parts = machine.infra.strip().split("/")
    if parts[0].lower() in _CLUSTERS:
        parts = parts[:1]  # what follows is a context, which may contain slashes
    if len(parts) > 3 or not all(parts):
        text = f"{machine.infra!r} is no place"
        found.refuse(kind.at("infra"), text, "write cloud/region/zone, * for any")
    cloud, region, zone = (*("" if part == "*" else part for part in parts), "", "", "")[:3]
    return cloud.lower(), region, zone


def _spell(name: str, kind: MachineKind, found: Findings) -> str:
    """The catalogues' spelling of an accelerator; an unknown one is kept."""
    by_fold = {known.casefold(): known for known in ACCELERATORS}
    if not name or name.lower().startswith("tpu-"):
        return name
    if name.casefold() in by_fold:
        return by_fold[name.casefold()]
    close = nearest(name, ACCELERATORS)
    found.warn(
        kind.at("accelerators"),
        f"{name!r} is no accelerator that spotd knows; it is asked for as written",
        f"did you mean {close!r}?" if close else "",
    )
    return name
