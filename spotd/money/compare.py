"""Compare a job with the same work on-demand, in the rows that case studies use.

Each figure comes from line items and records; figures that neither has are None, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spotd.domain.evaluation import Evaluation
from spotd.money.counterfactual import AS_IS, MIXED, NEEDED, SAME, Counterfactual
from spotd.money.hour_breakdown import TimeUse
from spotd.money.report import Account, Report


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run that line items do not have.

    `interruptions` is how often the work was interrupted, `elapsed_h` the hours from its start to
    its end, or until now; None if unknown.
    """

    interruptions: int | None = None
    elapsed_h: float | None = None
    num_nodes: int = 1
    evaluations: tuple[Evaluation, ...] = ()  # of its model, one of each suite


@dataclass(frozen=True)
class Row:
    """One measure in h, usd, share or "". None is not known, and `note` says why."""

    name: str
    unit: str
    on_demand: float | None
    actual: float | None
    note: str = ""


def compare(report: Report, facts: RunFacts) -> tuple[Row, ...]:
    """Return eight rows that compare the job with the same work on-demand.

    On-demand figures are for the same places, and for the hours that on-demand would have needed,
    or the same hours if those are unknown. Without an on-demand price they are None.
    """
    instead = _closest_to_needed(report.instead)
    billed, gpus_h = report.billed.hours, report.gpu_hours.hours
    needed_h = instead.hours.hours if instead else None
    usd = instead.total_microusd / 1e6 if instead else None
    needed_gpu_h = gpus_h * needed_h / billed if needed_h is not None and billed else None
    useful_h = report.useful_gpus.hours if TimeUse.UNTOLD not in report.uses else 0.0
    paid = report.total_microusd / 1e6
    exact = instead is not None and instead.basis == NEEDED
    basis = f"the {instead.basis} on demand" if instead else "no price on demand is known"
    alone_h = needed_h / facts.num_nodes if needed_h is not None else None
    return (
        Row("GPU-hours", "h", needed_gpu_h, gpus_h, basis),
        Row("cost", "usd", usd, paid, "on demand: the same storage, no egress, no control box"),
        Row("a GPU-hour", "usd", _by(usd, needed_gpu_h), _by(paid, gpus_h)),
        Row(
            name="a useful GPU-hour",
            unit="usd",
            on_demand=_by(usd, useful_h),
            actual=_by(paid, useful_h),
            note="" if useful_h else "which hours were useful is not known",
        ),
        Row(
            name="interruptions",
            unit="",
            on_demand=None,
            actual=facts.interruptions,
            note="machines on demand fail as well: not measured here",
        ),
        Row(
            name="machine-hours lost",
            unit="h",
            on_demand=0.0 if exact else None,
            actual=billed - needed_h if exact and needed_h is not None else None,
            note="beyond the needed hours, which have none"
            if exact
            else "needed hours are not known",
        ),
        _quality(facts.evaluations),
        Row(
            name="time to completion",
            unit="h",
            on_demand=alone_h,
            actual=facts.elapsed_h,
            note="on demand as if machines were there at once",
        ),
    )


def _closest_to_needed(instead: Sequence[Counterfactual]) -> Counterfactual | None:
    """Return the same places on demand, for the needed hours if known."""
    by_basis = {
        counterfactual.basis: counterfactual
        for counterfactual in instead
        if counterfactual.name == AS_IS
    }
    return by_basis.get(NEEDED) or by_basis.get(MIXED) or by_basis.get(SAME)


def _quality(evaluations: Sequence[Evaluation]) -> Row:
    """Return the share of test cases that the model passed, over all suites."""
    rows = [evaluation for evaluation in evaluations if evaluation.cases]
    name = "quality of the model"
    if not rows:
        return Row(name, "", None, None, "not measured: compare evaluations")
    cases, passed = (
        sum(evaluation.cases for evaluation in rows),
        sum(evaluation.passed for evaluation in rows),
    )
    suites = ", ".join(evaluation.suite for evaluation in rows)
    note = f"{passed:,} of {cases:,} cases of {suites} passed"
    return Row(name, "share", None, passed / cases, note)


def interruptions(account: Account) -> int:
    """Return how many attempts lost a chosen machine: a gang that loses two counts once."""
    broken = (
        machine.generation
        for machine in account.machines
        if machine.chosen and machine.details.get("interrupted") == "true"
    )
    return len(set(broken))


def comparison_data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as JSON."""
    return [
        {
            "name": row.name,
            "unit": row.unit or None,
            "on_demand": _rounded(row.on_demand),
            "actual": _rounded(row.actual),
            "note": row.note,
        }
        for row in rows
    ]


def _by(usd: float | None, hours: float | None) -> float | None:
    return usd / hours if usd is not None and hours else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
