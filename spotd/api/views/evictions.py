"""The five times of each machine that got a notice: what is not on record is null, and never 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spotd.api.views.resources import iso
from spotd.domain.node import Node
from spotd.store.interface import EventRow

# From the first word of it to when its cloud lists it no more.
TIMES = ("notice", "asked", "released", "ended", "gone")
KINDS = ("node_draining",)  # events that may say when a program was asked to stop


def asked_to_stop(rows: Iterable[EventRow]) -> Mapping[str, int]:
    """Node id -> when its program was last asked to stop, in microseconds; of events of KINDS. To
    train on until later is no such thing, and agents before this one do not say."""
    return {row.event.node_id: row.at_us for row in rows if row.event.data.get("stops") is True}


def evictions(nodes: Sequence[Node], asked_us: Mapping[str, int]) -> list[dict[str, Any]]:
    """Of machines with a notice in force, oldest first: when it was heard, when the program was
    asked to stop, when it had saved and released its work, when it ended, and when its machine was
    gone. Times before the notice are of something else, and not there."""
    found = []
    for node in nodes:
        heard = [one.heard_at_us for one in node.notices if one.takes_away]
        if not heard:
            continue
        heard_us = min(heard)
        later = (asked_us.get(node.id, 0), node.released_at_us, node.exited_at_us, node.gone_at_us)
        times = [heard_us, *(at_us if at_us >= heard_us else 0 for at_us in later)]
        where = {"node_id": node.id, "generation": node.generation, "rank": node.rank}
        at = {name: iso(at_us) for name, at_us in zip(TIMES, times, strict=True)}
        found.append((heard_us, where | at))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]
