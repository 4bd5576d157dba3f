"""The same work on demand and as it ran, in the rows in which case studies compare the two. Each
figure is of line items and records; what neither of them has is left open, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spotd.evaluation import Evaluation
from spotd.money.counterfactual import NEEDED
from spotd.money.document import headline_of
from spotd.money.report import Account, Report
from spotd.money.split import Use


@dataclass(frozen=True)
class Facts:
    """What line items do not say. `interruptions`: how often the work was broken off; `elapsed_h`:
    hours from its beginning until its end, or until now; None is not known."""

    interruptions: int | None = None
    elapsed_h: float | None = None
    num_nodes: int = 1
    evaluations: tuple[Evaluation, ...] = ()  # of its model, one of each suite


@dataclass(frozen=True)
class Row:
    """One measure; `unit` is h, usd, share or "". None: not known, and `note` says why."""

    name: str
    unit: str
    on_demand: float | None
    actual: float | None
    note: str = ""


def compare(report: Report, facts: Facts) -> tuple[Row, ...]:
    """Eight rows. On demand: in the same places, for the hours that it would have needed, else for
    the same hours; without a price on demand none of it is known."""
    instead = headline_of(report.instead)
    billed, gpus_h = report.billed.hours, report.gpu_hours.hours
    needed_h = instead.hours.hours if instead else None
    usd = instead.total_microusd / 1e6 if instead else None
    wanted_h = gpus_h * needed_h / billed if needed_h is not None and billed else None
    useful_h = report.useful_gpus.hours if Use.UNTOLD not in report.uses else 0.0
    paid = report.total_microusd / 1e6
    exact = instead is not None and instead.basis == NEEDED
    basis = f"the {instead.basis} on demand" if instead else "no price on demand is known"
    alone_h = needed_h / facts.num_nodes if needed_h is not None else None
    return (
        Row("GPU-hours", "h", wanted_h, gpus_h, basis),
        Row("cost", "usd", usd, paid, "on demand: the same storage, no egress, no control box"),
        Row("a GPU-hour", "usd", _by(usd, wanted_h), _by(paid, gpus_h)),
        Row(
            *("a useful GPU-hour", "usd", _by(usd, useful_h), _by(paid, useful_h)),
            "" if useful_h else "which hours were useful is not known",
        ),
        Row(
            *("interruptions", "", None, facts.interruptions),
            "machines on demand fail as well: not measured here",
        ),
        Row(
            *("machine-hours lost", "h", 0.0 if exact else None),
            billed - needed_h if exact and needed_h is not None else None,
            "beyond the needed hours, which have none" if exact else "needed hours are not known",
        ),
        _quality(facts.evaluations),
        Row(
            *("time to completion", "h", alone_h, facts.elapsed_h),
            "on demand as if machines were there at once",
        ),
    )


def _quality(told: Sequence[Evaluation]) -> Row:
    """The share of test cases that the model passed, of all suites together."""
    rows = [one for one in told if one.cases]
    name = "quality of the model"
    if not rows:
        return Row(name, "", None, None, "not measured: compare evaluations")
    cases, passed = sum(one.cases for one in rows), sum(one.passed for one in rows)
    note = f"{passed:,} of {cases:,} cases of {', '.join(one.suite for one in rows)} passed"
    return Row(name, "share", None, passed / cases, note)


def interruptions(account: Account) -> int:
    """How many attempts lost a machine that they had chosen: a gang that loses two loses once."""
    broken = (
        one.generation
        for one in account.machines
        if one.chosen and one.details.get("interrupted") == "true"
    )
    return len(set(broken))


def comparison_data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """As JSON."""
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
