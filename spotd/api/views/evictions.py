"""The five times of each machine that got a notice; an unrecorded time is null, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spotd.api.views.resources import iso
from spotd.domain.node import Node
from spotd.store.events import EventRow

# From the first report of the notice until the cloud no longer lists the machine.
TIMES = ("notice", "asked", "released", "ended", "gone")
KINDS = ("node_draining",)  # events that may say when a program was asked to stop


def asked_to_stop(rows: Iterable[EventRow]) -> Mapping[str, int]:
    """Return node id -> when its program was last asked to stop, in microseconds.

    `rows` are events of KINDS. An order to continue until later is not a stop. Older agents do not
    report it.
    """
    return {row.event.node_id: row.at_us for row in rows if row.event.data.get("stops") is True}


def evictions(nodes: Sequence[Node], asked_us: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the times of machines with a notice in force, oldest first.

    The times are: notice received, program asked to stop, work saved and released, program ended,
    machine gone. Times before the notice belong to something else and are left out.
    """
    timed_rows = []
    for node in nodes:
        notice_times = [notice.heard_at_us for notice in node.notices if notice.takes_machine]
        if not notice_times:
            continue
        notice_us = min(notice_times)
        later_times = (
            asked_us.get(node.id, 0),
            node.training.released_at_us,
            node.training.exited_at_us,
            node.machine.gone_at_us,
        )
        times = [notice_us, *(at_us if at_us >= notice_us else 0 for at_us in later_times)]
        node_fields = {"node_id": node.id, "generation": node.generation, "rank": node.rank}
        time_fields = {name: iso(at_us) for name, at_us in zip(TIMES, times, strict=True)}
        timed_rows.append((notice_us, node_fields | time_fields))
    return [row for _, row in sorted(timed_rows, key=lambda pair: pair[0])]
