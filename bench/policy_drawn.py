"""More cases of a suite: its series and jobs, with zones, times and starts drawn by chance.

The suites of several zones have one to four sets of zones, whose luck is a good part of what a
policy costs there. Of drawn cases each has a set of its own. They lie in the same weeks as the
suite's, and many overlap: they tell more of zones and deadlines, and no more of weeks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

ZONES = (2, 8)  # of a set, where the suite has as many
RESTART = (0.5, 1.5)  # times the suite's
EGRESS = (0.2, 2.0)


def drawn(cases: Sequence[dict[str, Any]], count: int, seed: int) -> list[dict[str, Any]]:
    """The same for the same seed. Deadlines are of the suite's, one after the other."""
    chance = random.Random(seed)
    most = max(len(case["avail"]) for case in cases)
    widest = [case for case in cases if len(case["avail"]) == most]
    deadlines_s = sorted({case["deadline_s"] for case in cases})
    return [
        _one(chance, chance.choice(widest), deadlines_s[number % len(deadlines_s)])
        for number in range(count)
    ]


def _one(chance: random.Random, like: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    every = range(len(like["avail"]))
    fewest, most = (min(bound, len(every)) for bound in ZONES)
    zones = chance.sample(every, chance.randint(fewest, most))
    ticks = int(deadline_s / like["gap"]) + 2
    egress, times = like.get("egress"), chance.uniform(*EGRESS)
    ways = [[egress[a][b] * times for b in zones] for a in zones] if egress else None
    return {
        **like,
        **{key: [like[key][z] for z in zones] for key in ("avail", "spot", "od_price", "zones")},
        **({"egress": ways} if ways else {}),
        "start": chance.randint(0, max(len(like["avail"][0]) - ticks, 0)),
        "deadline_s": deadline_s,
        "d_s": round(like["d_s"] * chance.uniform(*RESTART) / 60) * 60.0,
    }
