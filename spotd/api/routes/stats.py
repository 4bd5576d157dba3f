"""The route for interruption statistics, from the fleet's own observations."""

from __future__ import annotations

from typing import Any

from providers.base import CapacityType
from providers.catalogs.rates import rate_claims
from spotd.api.request.request import ApiRequest, bad_input
from spotd.api.views.resources import iso
from spotd.domain.units import S
from spotd.history.interruption_stats import GroupBy, Row, compare_with_prior, count, total
from spotd.history.intervals import COVERAGE, Interval, quantile
from spotd.planner.core.checkpoint_interval import prior_of

MONTH_S = 30 * 86_400
MOST_S = 10 * 366 * 86_400


def stats(call: ApiRequest) -> dict[str, Any]:
    """Interruptions, notices and launches of the last `since_s` seconds, grouped `by` the given
    property, of one `capacity` type. Rates are per machine-hour and come with count, hours and
    interval; null where there was nothing to count. `priors` are the prior rates of each cloud;
    `claims` are the rates in guides, in the same unit, which no calculation uses."""
    by, capacity = _by(call), _capacity(call)
    now_us = call.now_us
    since_us = now_us - call.number("since_s", MONTH_S, 1, MOST_S) * S
    machine_lives = call.context.store.node_history.machine_lives(since_us)
    rows = count(machine_lives, by, capacity, since_us, now_us)
    return {
        "kind": "Stats",
        "by": by.value,
        "capacity": capacity,
        "since": iso(since_us),
        "until": iso(now_us),
        "coverage": COVERAGE,
        "priors": [
            _prior(cloud, capacity) for cloud in sorted({life.cloud for life in machine_lives})
        ],
        "claims": _claims() if capacity == CapacityType.SPOT.value else [],
        "items": [_row_data(row) for row in rows],
        "total": _row_data(total(rows)),
    }


def _prior(cloud: str, capacity: str) -> dict[str, Any]:
    mtti_h, source = prior_of(cloud, capacity)
    return {"cloud": cloud, "per_machine_hour": 1 / mtti_h, "mtti_h": mtti_h, "source": source}


def _claims() -> list[dict[str, Any]]:
    return [
        {
            "name": claim.source_name,
            "what": claim.what,
            "claimed": claim.claimed,
            "per_machine_hour": {"low": claim.low, "high": claim.high},
            "mtti_h": 1 / claim.high,
            "note": claim.note,
            "dated": claim.dated,
            "source": claim.source,
        }
        for claim in rate_claims()
    ]


def _by(call: ApiRequest) -> GroupBy:
    name = call.query.get("by") or GroupBy.CLOUD.value
    try:
        return GroupBy(name)
    except ValueError:
        known = ", ".join(group.value for group in GroupBy)
        raise bad_input(f"by must be one of {known}, not {name!r}", "leave by out") from None


def _capacity(call: ApiRequest) -> str:
    capacity = call.query.get("capacity") or CapacityType.SPOT.value
    if capacity not in (kinds := [kind.value for kind in CapacityType]):
        message = f"capacity must be one of {', '.join(kinds)}, not {capacity!r}"
        raise bad_input(message, "leave capacity out")
    return capacity


def _row_data(row: Row) -> dict[str, Any]:
    hours = row.machine_us / (3600 * S)
    hazard = row.hazard
    return {
        "name": row.name,
        "machine_hours": round(hours, 6),
        "interruptions": {
            "count": row.interrupted,
            "preempted": row.preempted,
            "lost": row.lost,
            "per_machine_hour": _interval(hazard),
            "mtti_h": hours / row.interrupted if row.interrupted else None,
            "expected": round(row.expected, 6),
            "ratio": _interval(row.ratio),
            "often": compare_with_prior(row.ratio).value if row.ratio else None,
        },
        "resumes": {"tried": row.resumes, "trained": row.trained, "share": _interval(row.resumed)},
        "notice": {
            "without": _interval(row.without_notice),
            "announced": len(row.warnings_s),
            "cut_short": row.cut_short,
            "median_s": quantile(row.warnings_s, 0.5),
            "p10_s": quantile(row.warnings_s, 0.1),
        },
        "launches": {
            "asked": row.requested,
            "launched": row.launched,
            "refused": dict(sorted(row.refused.items(), key=lambda item: (-item[1], item[0]))),
            "refused_share": _interval(row.refusals),
            "boot_failures": row.failed_to_boot,
            "boot_failed_share": _interval(row.boot_failures),
            "hello": {
                "count": len(row.hellos_s),
                "median_s": quantile(row.hellos_s, 0.5),
                "p90_s": quantile(row.hellos_s, 0.9),
            },
        },
    }


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    """Return a rate with the data that it is based on; `few` marks a rate from very little data."""
    if interval is None:
        return None
    return {
        "count": interval.count,
        "of": round(interval.exposure, 6),
        "value": interval.middle,
        "low": interval.low,
        "high": interval.high,
        "few": interval.few,
    }
