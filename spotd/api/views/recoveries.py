"""The hand-overs of a job: the time of each part, and the steps lost.

A hand-over is the change from one attempt to a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spotd.api.views.resources import iso
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.store.checkpoints import CheckpointRow
from spotd.store.events import EventRow

MOST_SAVES = 200
# Each part is named by the event that ends it.
PARTS = ("detect_s", "request_s", "instance_s", "agent_s", "ready_s", "claim_s", "first_step_s")


@dataclass(frozen=True)
class ResumePoint:
    """The step of the checkpoint that a machine resumed from, and the seconds it took to read it.

    The reading is part of `first_step_s`. None: not on record.
    """

    step: int
    restore_s: float | None = None


def resumed_from(rows: Sequence[EventRow]) -> dict[str, ResumePoint]:
    """Return the resume points by node id, from events of the kind "claimed"."""
    points = {}
    for row in rows:
        step, restore_s = row.event.data.get("step"), row.event.data.get("restore_s")
        if isinstance(step, int):
            seconds = restore_s if isinstance(restore_s, float) else None
            points[row.event.node_id] = ResumePoint(step, seconds)
    return points


def hand_overs(nodes: Sequence[Node], resumed: Mapping[str, ResumePoint]) -> list[dict[str, Any]]:
    """Return each hand-over between the rank 0 machines of consecutive attempts, oldest first.

    Only attempts that trained count. All times are seconds. The parts add up to `total_s`, which
    runs from the notice, or else the last sign of life of the old machine, to the first step of the
    new one. `overlap`: the old machine trained on meanwhile, after a notice. `steps_lost` were
    reported and are in no checkpoint that was resumed from; null where no such checkpoint is on
    record.
    """
    leaders: dict[int, Node] = {}
    for node in sorted(nodes, key=lambda node: node.training.first_step_at_us):
        if node.training.first_step_at_us and node.rank == 0 and not node.moved_at_us:
            leaders[node.generation] = node
    ordered = [leaders[number] for number in sorted(leaders)]
    return [_hand_over(old, new, resumed) for old, new in pairwise(ordered)]


def _hand_over(old: Node, new: Node, resumed: Mapping[str, ResumePoint]) -> dict[str, Any]:
    notice_times = [notice.heard_at_us for notice in old.notices if notice.takes_machine]
    begin_us = min(notice_times) if notice_times else old.agent.heard_at_us
    detected_us = min(notice_times) if notice_times else old.departure.left_at_us
    marks = (
        detected_us,
        new.requested_at_us,
        new.machine.launched_at_us,
        new.startup.hello_at_us,
        new.startup.ready_at_us,
        new.training.claimed_at_us,
        new.training.first_step_at_us,
    )
    parts, at_us = {}, begin_us
    for name, mark_us in zip(PARTS, marks, strict=True):
        # A part that ended before the previous one, or has no recorded time, took 0 s.
        next_us = max(at_us, min(mark_us, new.training.first_step_at_us))
        parts[name] = round((next_us - at_us) / S, 3)
        at_us = next_us
    point = resumed.get(new.id)
    step = point.step if point else None
    return {
        "from_generation": old.generation,
        "to_generation": new.generation,
        "reason": old.departure.leave_reason.value if old.departure.leave_reason else None,
        "noticed": bool(notice_times),
        "began_at": iso(begin_us),
        "overlap": bool(notice_times) and old.agent.heard_at_us > new.requested_at_us,
        "parts": parts,
        "total_s": round((at_us - begin_us) / S, 3),
        "restore_s": point.restore_s if point else None,
        "resumed_step": step,
        "steps_lost": None if step is None else max(0, old.training.last_step - step),
    }


def saves(
    rows: Sequence[CheckpointRow], recoveries: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the newest MOST_SAVES committed checkpoints, and those resumed from, oldest first.

    Includes checkpoints that are no longer retained.
    """
    ordered = sorted((row for row in rows if row.bytes), key=lambda row: row.committed_at_us)
    resumed = {recovery["resumed_step"] for recovery in recoveries}
    older = [row for row in ordered[:-MOST_SAVES] if row.step in resumed]
    return [
        {"generation": row.generation, "step": row.step, "at": iso(row.committed_at_us)}
        for row in [*older, *ordered[-MOST_SAVES:]]
    ]
