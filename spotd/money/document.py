"""Write a report as JSON: exact dollars, hours, fractions of 1."""

from __future__ import annotations

from typing import Any

from spotd.money.counterfactual import Counterfactual
from spotd.money.hour_breakdown import TimeUse
from spotd.money.report import Claim, Item, Kind, Report, unexplained
from spotd.money.savings import Savings, WorkSaved, savings_of
from spotd.money.units import GpuHours, NodeHours, per_hour, usd

Data = dict[str, Any]


def report_data(report: Report, claim: Claim | None = None, savings: Savings | None = None) -> Data:
    """Return all of one report; `savings` defaults to those of one job."""
    savings = savings or savings_of(report)
    told = report.told
    useful = report.microusd_per_useful_gpu_h
    per_gpu = per_hour(report.total_microusd, report.gpu_hours)
    return {
        "job_id": report.job_id,
        "job": report.name,
        "user": report.user,
        "project": report.project,
        "total_usd": usd(report.total_microusd),
        **{f"{kind.value}_usd": usd(report.kind_microusd(kind)) for kind in Kind},
        "provisional": report.provisional,
        "invoiced_usd": usd(report.invoiced_microusd),
        "billed_node_hours": _hours(report.billed),
        "billed_gpu_hours": _hours(report.gpu_hours),
        "useful_gpu_hours": _hours(report.useful_gpus),
        "prepaid_node_hours": _hours(report.prepaid),
        "usd_per_useful_gpu_hour": None if useful is None else usd(useful),
        "usd_per_billed_gpu_hour": None if per_gpu is None else usd(per_gpu),
        "goodput": _goodput(report),
        "hours": [_use_data(report, use) for use in TimeUse if use in report.uses],
        "hedge_losers": {
            "machines": report.hedge_losers,
            "node_hours": _hours(report.hedge),
            "usd": usd(report.hedge_microusd),
        },
        "items": [_item_data(item) for item in report.items],
        "on_demand": [_instead_data(counterfactual) for counterfactual in report.instead],
        "saving": _rounded(told.saving) if told else None,
        "saving_basis": told.basis if told else None,
        "discount": _rounded(told.discount if told else report.discount),
        "savings": savings_data(savings),
        "unknown": list(report.unknown),
        **({"claim": _claim_data(claim, report)} if claim else {}),
    }


def savings_data(savings: Savings | None) -> Data | None:
    """Return the savings as JSON, or None without an on-demand price."""
    if savings is None:
        return None
    return {
        "total_usd": usd(savings.total_microusd),
        "fraction": _rounded(savings.fraction),
        "instead_usd": usd(savings.instead_microusd),
        "paid_usd": usd(savings.paid_microusd),
        "more_runs": _rounded(savings.runs),
        "parts": [
            {
                "name": part.name,
                "usd": None if part.microusd is None else usd(part.microusd),
                "against": part.against,
            }
            for part in savings.parts
        ],
    }


def protected_data(saved: WorkSaved) -> Data:
    return {
        "interruptions": saved.interruptions,
        "usd": usd(saved.microusd),
        "replayed_usd": usd(saved.replayed_microusd),
    }


def _goodput(report: Report) -> float | None:
    if TimeUse.UNTOLD in report.uses or not report.billed.us:
        return None
    return round(report.useful.us / report.billed.us, 4)


def _use_data(report: Report, use: TimeUse) -> Data:
    gpus = report.gpu_uses.get(use, GpuHours())
    cost = usd(report.costs.get(use, 0))
    hours = _hours(report.uses[use])
    return {"use": use.value, "node_hours": hours, "gpu_hours": _hours(gpus), "cost_usd": cost}


def _item_data(item: Item) -> Data:
    rate = round(item.cost_microusd / item.quantity) if item.quantity else None
    return {
        "kind": item.kind.value,
        "phase": item.phase,
        "what": item.what,
        "quantity": round(item.quantity, 6),
        "unit": item.unit,
        "rate_usd": None if rate is None else usd(rate),
        "cost_usd": usd(item.cost_microusd),
        "estimated": item.estimated,
        "hedge_lost": item.hedge_lost,
    }


def _instead_data(counterfactual: Counterfactual) -> Data:
    return {
        "name": counterfactual.name,
        "basis": counterfactual.basis,
        "node_hours": _hours(counterfactual.hours),
        "compute_usd": usd(counterfactual.compute_microusd),
        "storage_usd": usd(counterfactual.storage_microusd),
        "total_usd": usd(counterfactual.total_microusd) if counterfactual.priced_microusd else None,
        "saving": _rounded(counterfactual.saving),
        "discount": _rounded(counterfactual.discount),
    }


def _claim_data(claim: Claim, report: Report) -> Data:
    rest = unexplained(claim, report)
    return {
        "total_usd": usd(claim.total_microusd),
        "without_line_item_usd": usd(rest.total_microusd),
        "without_line_item": _rounded(rest.share),
        "baseline_usd": usd(claim.baseline_microusd),
        "baseline_without_line_item_usd": usd(rest.baseline_microusd),
        "baseline_without_line_item": _rounded(rest.baseline_share),
        "saving": _rounded(claim.saving),
        "saving_by_line_items": _rounded(rest.saving),
    }


def _hours(time: NodeHours | GpuHours) -> float:
    return round(time.hours, 6)


def _rounded(fraction: float | None) -> float | None:
    return None if fraction is None else round(fraction, 4)
