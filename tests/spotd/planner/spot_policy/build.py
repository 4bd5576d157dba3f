"""Small situations."""

from __future__ import annotations

from typing import Any

from providers.base import CapacityType
from spotd.planner.spot_policy import Pool, RemainingWork, RunningGang, Situation

H = 3600.0
# What makes each table's place a worse one.
WORSE: list[dict[str, float]] = [
    {"ends": 3.0}, {"returns": 0.3}, {"restart_h": 0.6}, {"loss_h": 1.0}, {"on_demand": 5.0},
]  # fmt: skip
SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


def pool(key: str = "a", **changes: Any) -> Pool:
    """Spot at $1 an hour, on-demand at $3."""
    told: dict[str, Any] = {
        "region": "r", "spot_usd_per_h": 1.0, "on_demand_usd_per_h": 3.0, **changes
    }  # fmt: skip
    return Pool(key, **told)


def situation(*pools: Pool, running: RunningGang | None = None, **changes: Any) -> Situation:
    """At 0: 40 h of work until hour 60, 12 min a restart, looks 10 min apart that may be late."""
    told: dict[str, Any] = {
        "left_s": 40 * H, "deadline_s": 60 * H, "restart_s": 720.0, "look_s": 600.0,
        "late_s": 600.0, **changes
    }  # fmt: skip
    now_s, signalled = told.pop("now_s", 0.0), told.pop("signalled", False)
    probe_s = told.pop("probe_s", None)
    return Situation(now_s, RemainingWork(**told), pools or (pool(),), running, signalled, probe_s)
