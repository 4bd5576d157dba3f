"""Choose the interval between saves from the cost of a save and the time between losses.

Standard library only, Python >= 3.10. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

UPLOAD_FACTOR = 1.1  # a save begins a little after the previous one is durable
FIRST_SAVE_S = 60.0  # before the first save, which measures
MIN_INTERVAL_S = 30.0  # below, keeping the record of saves costs more than saves
MAX_INTERVAL_S = 3600.0  # the estimates are too uncertain to risk more
ASSUMED_MTBF_S = 4 * 3600.0  # if unknown


@dataclass(frozen=True)
class CheckpointTerms:
    """Estimates by the control box.

    `mtbf_s`: mean time in seconds between losses of this job's machines. `gb_costs_s` and
    `put_costs_s`: the price of uploading one GB and of one write to the store, in seconds of the
    price of all the job's machines.
    """

    mtbf_s: float = ASSUMED_MTBF_S
    gb_costs_s: float = 0.0
    put_costs_s: float = 0.0

    def save_costs_s(self, size: int, puts: int) -> float:
        """Return the price of a save of `size` bytes in `puts` writes, in machine seconds."""
        return size / 1e9 * self.gb_costs_s + puts * self.put_costs_s


def read_terms(env: Mapping[str, str]) -> CheckpointTerms:
    """Read the terms from the environment that the agent sets."""
    names = ("SPOTD_MTBF_S", "SPOTD_GB_COSTS_S", "SPOTD_PUT_COSTS_S")
    mtbf_s, gb_costs_s, put_costs_s = (float(env.get(name) or 0) for name in names)
    return CheckpointTerms(mtbf_s or ASSUMED_MTBF_S, gb_costs_s, put_costs_s)


def interval_s(stall_s: float, upload_s: float, mtbf_s: float, save_costs_s: float = 0.0) -> float:
    """Return the seconds from one save to the next.

    Per interval T, a save costs `stall_s` of training and its price of `save_costs_s`; a loss, one
    per `mtbf_s`, costs T/2 on average. The sum is smallest at T = sqrt(2 * cost * MTBF) (Young, "A
    first order approximation to the optimum checkpoint interval", 1974). No save begins before the
    previous one is durable.
    """
    young_s = math.sqrt(2 * (stall_s + save_costs_s) * mtbf_s)
    return max(UPLOAD_FACTOR * upload_s, min(max(young_s, MIN_INTERVAL_S), MAX_INTERVAL_S))
