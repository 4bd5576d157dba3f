"""The policy without one of its terms: what each of them brings.

`--ablations` of bench/policy.py scores each beside the whole. A term is switched off in the modules
of the policy itself, for the time of one case, so that what is scored is what ships but for that.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any
from unittest import mock

from policy_ours import Ours

from spotd.planner.spot_policy import cost_estimator, hazard, pool_record
from spotd.planner.spot_policy.single_pool_mdp import exact

choose = importlib.import_module(
    "spotd.planner.spot_policy.choose"
)  # the name is the function's, too
NEVER = float("inf")
TERMS: Mapping[str, tuple[tuple[Any, str, Any], ...]] = {
    "age": ((pool_record, "SLOPE", 0.0), (pool_record, "RATE", 0.2)),
    "own history": ((hazard, "POOL_EVENTS", 1e9), (hazard, "FLEET_EVENTS", 1e9)),
    "ends nearby": ((hazard, "LIFT", 1.0),),
    "watching young spot": ((choose, "RIPER_FOR", NEVER),),
    "moves": ((choose, "MOVED_FOR", NEVER),),
    "found elsewhere": ((cost_estimator, "ELSEWHERE_LOOKS", 1e9),),
}


class Without(Ours):
    """The policy without that term of TERMS, or "egress": all moves are thought to be free."""

    def __init__(self, term: str, lost_s: float = 0.0) -> None:
        super().__init__(lost_s, f"spotd without {term}")
        self.term, self.free_moves = term, term == "egress"

    def step(self, view: Any) -> None:
        patches = [mock.patch.object(*patch) for patch in TERMS.get(self.term, ())]
        for patch in patches:
            patch.start()
        try:
            super().step(view)
        finally:
            for patch in patches:
                patch.stop()

    def reset(self, view: Any) -> None:
        exact.cache_clear()
        cost_estimator.table.cache_clear()
        cost_estimator.paid_per_done.cache_clear()
        super().reset(view)


def ablations(lost_s: float) -> list[Ours]:
    return [Without(term, lost_s) for term in (*TERMS, "egress")]
