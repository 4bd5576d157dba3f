"""Read a job's preferences: `objective`, `work`, `deadline`, `residency`, `not_operated_from`."""

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
from spotd.spec.machine_request import MachineRequest
from spotd.spec.model import task
from spotd.spec.prefetch import read_prefetch

_GROUPS = "EU, EEA or adequate, or countries like DE or CH"


def apply_preferences(request: MachineRequest, file: JobFile, findings: Findings) -> MachineRequest:
    """Return `request` with the job's preferences, and the capacity types its deadline permits."""
    preferences = _preferences(file, request, findings)
    applied = replace(
        _apply_deadline(request, file, preferences, findings), preferences=preferences
    )
    _check_serving(applied, file.spotd, findings)
    return applied


def _check_serving(request: MachineRequest, block: SpotdBlock, findings: Findings) -> None:
    """Refuse inference on spot machines unless `serve_on_spot` accepts preemption."""
    if block.kind != "inference":
        if block.serve_on_spot:
            findings.refuse(("spotd", "serve_on_spot"), "needs kind: inference", "leave it out")
        return
    spot = any(
        CapacityType.SPOT in alternative.capacity_types for alternative in request.alternatives
    )
    if spot and not block.serve_on_spot:
        message = "inference may not run on spot: a preemption would interrupt requests"
        fix = "capacity: on_demand, or serve_on_spot: true if you accept that"
        findings.refuse(("spotd", "kind"), message, fix)


def _preferences(file: JobFile, request: MachineRequest, findings: Findings) -> Preferences:
    """Return the preferences, with speeds estimated from `spotd.model` for each alternative."""
    block = file.spotd
    work = block.work
    if work and block.total_steps:
        message = "says how much work there is, as spotd.work does"
        findings.refuse(("spotd", "total_steps"), message, "leave one of the two out")
    steps, seconds = (work.steps, work.seconds) if work else (block.total_steps or 0, 0.0)
    preferences = Preferences(
        objective=Objective(block.objective),
        work_s=seconds,
        work_steps=steps,
        residency=_country_codes(block.residency, "residency", findings),
        not_operated_from=_country_codes(block.not_operated_from, "not_operated_from", findings),
        ahead=read_prefetch(
            block.stage_ahead, [mount.source or "" for mount in file.file_mounts.values()], findings
        ),
    )
    try:
        training_task = task(block.model) if block.model else None
    except TaskError:
        training_task = None  # `check_model` says what is wrong
    if training_task is None or not request.alternatives:
        return preferences
    return _apply_model(preferences, training_task, request.alternatives, file.num_nodes)


def _apply_deadline(
    request: MachineRequest, file: JobFile, preferences: Preferences, findings: Findings
) -> MachineRequest:
    """Let a job with a deadline use on-demand machines when spot would be late.

    `use_spot: true` is only a preference, so on-demand is added; `capacity: spot` is strict.
    """
    block, path = file.spotd, ("spotd", "deadline")
    if not block.deadline:
        return request
    if not preferences.measurable:
        findings.warn(
            path,
            "does not affect placement until the program names its total, as by run.steps(N)",
            "add spotd.work, like 40h of training or 100000 steps",
        )
        return request
    if preferences.work_steps and not preferences.step_s:
        findings.warn(
            path,
            "takes effect only after two checkpoints show how long a step takes",
            "write spotd.work as a time, or describe the model in spotd.model",
        )
    if not any(
        alternative.capacity_types == (CapacityType.SPOT,) for alternative in request.alternatives
    ):
        return request
    if block.capacity is not None:
        findings.warn(path, "cannot be guaranteed with spot only", "add on_demand to capacity")
        return request
    message = "may use on-demand machines to meet the deadline, although use_spot is true"
    findings.warn(path, message, "write capacity: spot instead of use_spot to forbid that")
    return replace(
        request,
        alternatives=tuple(_allow_on_demand(alternative) for alternative in request.alternatives),
    )


def _allow_on_demand(alternative: OfferRequest) -> OfferRequest:
    if alternative.capacity_types != (CapacityType.SPOT,):
        return alternative
    return replace(alternative, capacity_types=(CapacityType.SPOT, CapacityType.ON_DEMAND))


def _country_codes(named: Sequence[str] | None, key: str, findings: Findings) -> tuple[str, ...]:
    countries: set[str] = set()
    for index, name in enumerate(named or ()):
        members = places().members(name)
        if not members:
            findings.refuse(
                ("spotd", key, index), f"{name!r} is not a known place", f"write {_GROUPS}"
            )
        countries |= members
    if named is not None and not named:
        findings.refuse(("spotd", key), "the list is empty", f"write {_GROUPS}, or leave it out")
    return tuple(sorted(countries))


def _apply_model(
    preferences: Preferences,
    training_task: Task,
    alternatives: Sequence[OfferRequest],
    num_nodes: int,
) -> Preferences:
    """Add the expected speed of each alternative and the time of a step, from the model.

    `spotd.work` takes precedence over the amount of work that `spotd.model` gives.
    """
    estimates = {
        (alternative.accelerator, alternative.accelerator_count): estimate
        for alternative in alternatives
        if (estimate := _estimate_speed(training_task, alternative, num_nodes)) is not None
    }
    first = estimates.get((alternatives[0].accelerator, alternatives[0].accelerator_count))
    if first is None:
        return preferences
    hours, tokens_per_s = first
    speeds = tuple(
        Speed(name, count, round(hours / h if hours else rate / tokens_per_s, 4))
        for (name, count), (h, rate) in estimates.items()
        if (h or not hours) and rate
    )
    if not preferences.measurable:
        steps = training_task.steps
        preferences = replace(preferences, work_steps=steps, work_s=0.0 if steps else hours * 3600)
    step_s = hours * 3600 / training_task.steps if training_task.steps else 0.0
    return replace(preferences, speeds=speeds, step_s=round(step_s, 6))


def _estimate_speed(
    training_task: Task, alternative: OfferRequest, num_nodes: int
) -> tuple[float, float] | None:
    """Return (hours for the whole task, tokens per second); None if it cannot be estimated."""
    try:
        card = cards.find(alternative.accelerator)
        estimate = size(training_task, card, max(alternative.accelerator_count, 1) * num_nodes)
    except (KeyError, ValueError):
        return None
    tokens_per_s = estimate.pace.tokens_per_s
    return hours_of(estimate.task, tokens_per_s), tokens_per_s
