"""From a job file to what the job wishes of where it runs: `objective`, `work`, `residency`,
`not_operated_from`, and what a deadline permits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from providers.base import CapacityType, OfferRequest
from providers.catalogs.places import places
from spotd.domain.preferences import Objective, Preferences, Speed
from spotd.sizing import cards
from spotd.sizing.advice import hours_of
from spotd.sizing.sizes import size
from spotd.sizing.task import Task, TaskError
from spotd.spec.file import JobFile, SpotdBlock
from spotd.spec.findings import Findings
from spotd.spec.model import task
from spotd.spec.places import MachineRequest
from spotd.spec.prefetch import read_ahead

_GROUPS = "EU, EEA or adequate, or countries like DE or CH"


def wished(place: MachineRequest, file: JobFile, found: Findings) -> MachineRequest:
    """`place` with the wishes, and with what a deadline permits."""
    wishes = _wishes(file, place, found)
    where = replace(_with_deadline(place, file, wishes, found), wishes=wishes)
    _check_serving(where, file.spotd, found)
    return where


def _check_serving(place: MachineRequest, block: SpotdBlock, found: Findings) -> None:
    """What answers live requests is on no machine that is taken away, unless its file says so."""
    if block.kind != "inference":
        if block.serve_on_spot:
            found.refuse(("spotd", "serve_on_spot"), "is of kind: inference", "leave it out")
        return
    spot = any(CapacityType.SPOT in want.capacity_types for want in place.alternatives)
    if spot and not block.serve_on_spot:
        text = "inference may not run on spot: it is taken away while it answers"
        fix = "capacity: on_demand, or serve_on_spot: true if you accept that"
        found.refuse(("spotd", "kind"), text, fix)


def _wishes(file: JobFile, place: MachineRequest, found: Findings) -> Preferences:
    """What the file wishes, with what its model foretells of each alternative."""
    block = file.spotd
    work = block.work
    steps, seconds = (work.steps, work.seconds) if work else (0, 0.0)
    wishes = Preferences(
        objective=Objective(block.objective),
        work_s=seconds,
        work_steps=steps,
        residency=_countries(block.residency, "residency", found),
        not_operated_from=_countries(block.not_operated_from, "not_operated_from", found),
        ahead=read_ahead(
            block.stage_ahead, [one.source or "" for one in file.file_mounts.values()], found
        ),
    )
    try:
        trained = task(block.model) if block.model else None
    except TaskError:
        trained = None  # `check_model` says what is wrong
    if trained is None or not place.alternatives:
        return wishes
    return _with_model(wishes, trained, place.alternatives, file.num_nodes)


def _with_deadline(
    place: MachineRequest, file: JobFile, wishes: Preferences, found: Findings
) -> MachineRequest:
    """A deadline is kept by machines that nobody takes away: `use_spot: true` is a wish to pay
    less, and permits them where the time needs it; `capacity: spot` permits none."""
    block, where = file.spotd, ("spotd", "deadline")
    if not block.deadline:
        return place
    if not wishes.measurable:
        found.warn(
            where,
            "does not steer placement: nothing says how much there is to do",
            "add spotd.work, like 40h of training or 100000 steps",
        )
        return place
    if wishes.work_steps and not wishes.step_s:
        found.warn(
            where,
            "is looked at only once two checkpoints show how long a step takes",
            "write spotd.work as a time, or say what is trained in spotd.model",
        )
    if not any(want.capacity_types == (CapacityType.SPOT,) for want in place.alternatives):
        return place
    if block.capacity is not None:
        found.warn(where, "cannot be promised on spot alone", "let capacity name on_demand too")
        return place
    text = "may take on-demand machines where the time needs it, though use_spot is true"
    found.warn(where, text, "capacity: spot instead of use_spot forbids that")
    return replace(place, alternatives=tuple(_both(want) for want in place.alternatives))


def _both(want: OfferRequest) -> OfferRequest:
    if want.capacity_types != (CapacityType.SPOT,):
        return want
    return replace(want, capacity_types=(CapacityType.SPOT, CapacityType.ON_DEMAND))


def _countries(named: Sequence[str] | None, key: str, found: Findings) -> tuple[str, ...]:
    known: set[str] = set()
    for index, name in enumerate(named or ()):
        members = places().members(name)
        if not members:
            found.refuse(("spotd", key, index), f"{name!r} is no place", f"write {_GROUPS}")
        known |= members
    if named is not None and not named:
        found.refuse(("spotd", key), "the list is empty", f"write {_GROUPS}, or leave it out")
    return tuple(sorted(known))


def _with_model(
    wishes: Preferences, trained: Task, wants: Sequence[OfferRequest], num_nodes: int
) -> Preferences:
    """How fast each alternative is expected to be, and how long a step takes, where the file says
    what is trained; what was said of the amount of work comes before what the model says."""
    found = {
        (want.accelerator, want.accelerator_count): rates
        for want in wants
        if (rates := _rates(trained, want, num_nodes)) is not None
    }
    first = found.get((wants[0].accelerator, wants[0].accelerator_count))
    if first is None:
        return wishes
    hours, tokens_per_s = first
    speeds = tuple(
        Speed(name, count, round(hours / h if hours else rate / tokens_per_s, 4))
        for (name, count), (h, rate) in found.items()
        if (h or not hours) and rate
    )
    if not wishes.measurable:
        steps = trained.steps
        wishes = replace(wishes, work_steps=steps, work_s=0.0 if steps else hours * 3600)
    step_s = hours * 3600 / trained.steps if trained.steps else 0.0
    return replace(wishes, speeds=speeds, step_s=round(step_s, 6))


def _rates(trained: Task, want: OfferRequest, num_nodes: int) -> tuple[float, float] | None:
    """(hours of the whole task, tokens per second) there; None where nothing is known."""
    try:
        card = cards.find(want.accelerator)
        found = size(trained, card, max(want.accelerator_count, 1) * num_nodes)
    except (KeyError, ValueError):
        return None
    rate = found.pace.tokens_per_s
    return hours_of(found.task, rate), rate
