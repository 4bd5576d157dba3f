"""The spot policy: choose spot here or elsewhere, on-demand, or a wait.

`choose(situation)` is the entry point (choose.py). situation.py is its input, choice.py its answer.
The daemon and `bench/policy.py` call the same function. docs/placement.md has the formulas and the
source of each constant.
"""

from spotd.planner.spot_policy.choice import Action, Choice, Option
from spotd.planner.spot_policy.choose import choose
from spotd.planner.spot_policy.pool_record import UNSEEN, PoolRecord, Sighting, recorded
from spotd.planner.spot_policy.situation import Pool, RemainingWork, RunningGang, Situation

__all__ = [
    "UNSEEN",
    "Action",
    "Choice",
    "Option",
    "Pool",
    "PoolRecord",
    "RemainingWork",
    "RunningGang",
    "Sighting",
    "Situation",
    "choose",
    "recorded",
]
