"""On how many machines of one offer a task is proposed: on one where it fits one, and on more only
where it does not, or where it would not be done in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotd.sizing.memory import DOES_NOT_FIT, FITS
from spotd.sizing.sizes import Measured, on_offer
from spotd.sizing.task import Task

NODES = (1, 2, 3, 4, 6, 8)  # that are tried


def proposed(
    task: Task, offer: Mapping[str, Any], measured: Measured | None = None, within_h: float = 0.0
) -> list[dict[str, Any]]:
    """As few machines as it may fit on, and as few as it does; where these take longer than
    `within_h` (0.0: nobody waits for it), also as few as are in time. One, where it fits no number
    that is tried. `late` says which take longer."""
    found: dict[tuple[str, bool], dict[str, Any]] = {}
    for nodes in NODES:
        one = on_offer(task, offer, nodes, measured)
        if one is None:
            break
        late = bool(within_h and one["hours"] and one["hours"] > within_h)
        found.setdefault((one["verdict"], late), {**one, "late": late})
        if one["verdict"] == FITS and not late:
            break
    fitting = [one for (word, _), one in found.items() if word != DOES_NOT_FIT]
    return fitting or list(found.values())[:1]
