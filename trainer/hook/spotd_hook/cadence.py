"""How often to save: by what a save costs, and by how long a machine lives.

Standard library only, Python >= 3.10, no clock, nothing remembered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

UPLOAD_FACTOR = 1.1  # the next one begins when the last is durable, and a little later
FIRST_S = 60.0  # until the first save, which measures
LEAST_S = 30.0  # below that it is the record of saves that costs, and not the saves
MOST_S = 3600.0  # no formula is so sure of its figures that it may risk more
ASSUMED_MTBF_S = 4 * 3600.0  # where nobody has said


@dataclass(frozen=True)
class CheckpointTerms:
    """What is known of the place, by the control box. `mtbf_s` is the mean time between losses of
    this job's machines. A GB that is uploaded costs as much as `gb_costs_s` seconds
    of all the job's machines, a write to the store as much as `put_costs_s`."""

    mtbf_s: float = ASSUMED_MTBF_S
    gb_costs_s: float = 0.0
    put_costs_s: float = 0.0

    def save_costs_s(self, size: int, puts: int) -> float:
        """What a save of `size` bytes in `puts` writes costs in money, in seconds of the machines
        that the same money would have paid."""
        return size / 1e9 * self.gb_costs_s + puts * self.put_costs_s


def read_terms(env: Mapping[str, str]) -> CheckpointTerms:
    """As the agent gives them to the program."""
    names = ("SPOTD_MTBF_S", "SPOTD_GB_COSTS_S", "SPOTD_PUT_COSTS_S")
    mtbf_s, gb_costs_s, put_costs_s = (float(env.get(name) or 0) for name in names)
    return CheckpointTerms(mtbf_s or ASSUMED_MTBF_S, gb_costs_s, put_costs_s)


def interval_s(stall_s: float, upload_s: float, mtbf_s: float, save_costs_s: float = 0.0) -> float:
    """Seconds from one save to the next.

    Of each interval T a save takes `stall_s` from training and `save_costs_s` of its price; each
    loss, one in `mtbf_s`, takes T/2 on average. The sum is least at sqrt(2 * cost * MTBF) (Young,
    1974). No save begins before the last one is durable.
    """
    young_s = math.sqrt(2 * (stall_s + save_costs_s) * mtbf_s)
    return max(UPLOAD_FACTOR * upload_s, min(max(young_s, LEAST_S), MOST_S))
