"""How many examples a property is held to: a few in every run, and SPOTD_EXAMPLES times as many
where somebody has the time (`make soak`)."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("SPOTD_EXAMPLES", "1"))


def examples(few: int) -> int:
    """For `max_examples`."""
    return few * TIMES
