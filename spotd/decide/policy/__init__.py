"""Where a job runs next, and how: spot here or there, on-demand, or a wait.

`choose(situation)` is the whole of it (choose.py); situation.py says what it is told, choice.py
what it answers. The daemon and `bench/policy.py` call the same function. docs/placement.md has the
formulas and where each constant is from.
"""

from spotd.decide.policy.choice import Action, Choice, Option
from spotd.decide.policy.choose import choose
from spotd.decide.policy.record import UNSEEN, Record, Sighting, recorded
from spotd.decide.policy.situation import Pool, Running, Situation, Work

__all__ = [
    "UNSEEN",
    "Action",
    "Choice",
    "Option",
    "Pool",
    "Record",
    "Running",
    "Sighting",
    "Situation",
    "Work",
    "choose",
    "recorded",
]
