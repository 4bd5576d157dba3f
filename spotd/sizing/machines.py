"""Propose the number of machines of an offer: one if the task fits, more only if needed.

More are needed if it does not fit, or would not be done in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotd.sizing.memory import DOES_NOT_FIT
from spotd.sizing.sizes import Measured, on_offer
from spotd.sizing.task import Task

NODES = (1, 2, 3, 4, 6, 8)  # that are tried


def proposed(
    task: Task, offer: Mapping[str, Any], measured: Measured | None = None, within_h: float = 0.0
) -> list[dict[str, Any]]:
    """Return the fewest machines on which it may fit, and the fewest on which it does, by default
    or with options that leave all state on the GPUs.

    If these take longer than `within_h` (0.0 for no limit), also the fewest that are in time. One
    machine if it fits no number that is tried. `late` says which take longer.
    """
    proposals: dict[tuple[str, bool, bool], dict[str, Any]] = {}
    for nodes in NODES:
        one = on_offer(task, offer, nodes, measured)
        if one is None:
            break
        late = bool(within_h and one["hours"] and one["hours"] > within_h)
        key = (one["verdict"], one["on_the_gpu"], late)
        proposals.setdefault(key, {**one, "late": late})
        if one["on_the_gpu"] and not late:
            break
    fitting = [one for (word, *_), one in proposals.items() if word != DOES_NOT_FIT]
    return fitting or list(proposals.values())[:1]
