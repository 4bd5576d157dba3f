"""The route about how machines fared: what a fleet knows of its clouds by itself."""

from __future__ import annotations

from typing import Any

from providers.base import CapacityType
from providers.catalogs.rates import rate_claims
from spotd.api.request.request import ApiRequest, bad_input
from spotd.api.views.resources import iso
from spotd.domain.units import S
from spotd.history.interruption_stats import GroupBy, Row, count, often, total
from spotd.history.intervals import COVERAGE, Interval, quantile
from spotd.planner.core.checkpoint_interval import prior_of

MONTH_S = 30 * 86_400
MOST_S = 10 * 366 * 86_400


def stats(call: ApiRequest) -> dict[str, Any]:
    """Interruptions, notices and launches of the last `since_s` seconds, sorted `by` what was asked
    for, of one `capacity` type. Rates are per machine-hour and come with count, hours and interval;
    null where there was nothing to count. `priors` are what was believed of each cloud before;
    `claims` are what guides say, in the same unit, and nothing is reckoned with them."""
    by, capacity = _by(call), _capacity(call)
    now_us = call.now_us
    since_us = now_us - call.number("since_s", MONTH_S, 1, MOST_S) * S
    lives = call.backing.store.machine_lives(since_us)
    rows = count(lives, by, capacity, since_us, now_us)
    return {
        "kind": "Stats",
        "by": by.value,
        "capacity": capacity,
        "since": iso(since_us),
        "until": iso(now_us),
        "coverage": COVERAGE,
        "priors": [_prior(cloud, capacity) for cloud in sorted({one.cloud for one in lives})],
        "claims": _claims() if capacity == CapacityType.SPOT.value else [],
        "items": [_row_data(one) for one in rows],
        "total": _row_data(total(rows)),
    }


def _prior(cloud: str, capacity: str) -> dict[str, Any]:
    each_h, source = prior_of(cloud, capacity)
    return {"cloud": cloud, "per_machine_hour": 1 / each_h, "mtti_h": each_h, "source": source}


def _claims() -> list[dict[str, Any]]:
    return [
        {
            "name": one.source_name,
            "what": one.what,
            "claimed": one.claimed,
            "per_machine_hour": {"low": one.low, "high": one.high},
            "mtti_h": 1 / one.high,
            "note": one.note,
            "dated": one.dated,
            "source": one.source,
        }
        for one in rate_claims()
    ]


def _by(call: ApiRequest) -> GroupBy:
    named = call.query.get("by") or GroupBy.CLOUD.value
    try:
        return GroupBy(named)
    except ValueError:
        known = ", ".join(one.value for one in GroupBy)
        raise bad_input(f"by must be one of {known}, not {named!r}", "leave by out") from None


def _capacity(call: ApiRequest) -> str:
    named = call.query.get("capacity") or CapacityType.SPOT.value
    if named not in (kinds := [kind.value for kind in CapacityType]):
        text = f"capacity must be one of {', '.join(kinds)}, not {named!r}"
        raise bad_input(text, "leave capacity out")
    return named


def _row_data(row: Row) -> dict[str, Any]:
    hours = row.machine_us / (3600 * S)
    hazard = row.hazard
    return {
        "name": row.name,
        "machine_hours": round(hours, 6),
        "interruptions": {
            "count": row.taken,
            "preempted": row.preempted,
            "lost": row.lost,
            "per_machine_hour": _interval(hazard),
            "mtti_h": hours / row.taken if row.taken else None,
            "expected": round(row.expected, 6),
            "ratio": _interval(row.ratio),
            "often": often(row.ratio).value if row.ratio else None,
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
            "asked": row.asked,
            "launched": row.launched,
            "refused": dict(sorted(row.refused.items(), key=lambda one: (-one[1], one[0]))),
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


def _interval(found: Interval | None) -> dict[str, Any] | None:
    """With what it rests on; `few`: on next to nothing."""
    if found is None:
        return None
    return {
        "count": found.count,
        "of": round(found.exposure, 6),
        "value": found.middle,
        "low": found.low,
        "high": found.high,
        "few": found.few,
    }
