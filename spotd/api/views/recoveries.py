"""Each time that training went on with a later attempt: what that took, part by part, and the steps
that it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spotd.api.views.resources import iso
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.store.interface import CheckpointRow, EventRow

MOST_SAVES = 200
# Each part is named by what it ends with.
PARTS = ("detect_s", "request_s", "instance_s", "agent_s", "ready_s", "claim_s", "first_step_s")


@dataclass(frozen=True)
class ResumePoint:
    """The step of the checkpoint that a machine went on from, and how long it took to read it: part
    of `first_step_s`. None: not on record."""

    step: int
    restore_s: float | None = None


def resumed_from(claims: Sequence[EventRow]) -> dict[str, ResumePoint]:
    """By node id, of events of the kind claimed."""
    found = {}
    for row in claims:
        step, restore_s = row.event.data.get("step"), row.event.data.get("restore_s")
        if isinstance(step, int):
            told = restore_s if isinstance(restore_s, float) else None
            found[row.event.node_id] = ResumePoint(step, told)
    return found


def hand_overs(nodes: Sequence[Node], resumed: Mapping[str, ResumePoint]) -> list[dict[str, Any]]:
    """From the machine of rank 0 of one attempt that trained to that of the next, oldest first.

    Seconds; the parts add up to `total_s`, from the notice or else the last sign of life of the old
    machine to the first step of the new one. `overlap`: the old one trained on meanwhile, after a
    notice. `steps_lost` were reported, and are in no checkpoint that was gone on from; null where
    no such checkpoint is on record.
    """
    leaders: dict[int, Node] = {}
    for node in sorted(nodes, key=lambda one: one.first_step_at_us):
        if node.first_step_at_us and node.rank == 0 and not node.moved_at_us:
            leaders[node.generation] = node
    ordered = [leaders[number] for number in sorted(leaders)]
    return [_hand_over(old, new, resumed) for old, new in pairwise(ordered)]


def _hand_over(old: Node, new: Node, resumed: Mapping[str, ResumePoint]) -> dict[str, Any]:
    heard = [one.heard_at_us for one in old.notices if one.takes_away]
    begin_us = min(heard) if heard else old.heard_at_us
    known_us = min(heard) if heard else old.left_at_us
    marks = (
        known_us,
        new.requested_at_us,
        new.launched_at_us,
        new.hello_at_us,
        new.ready_at_us,
        new.claimed_at_us,
        new.first_step_at_us,
    )
    parts, at_us = {}, begin_us
    for name, mark_us in zip(PARTS, marks, strict=True):
        # What came earlier than the part before, or has no time on record, took nothing more.
        next_us = max(at_us, min(mark_us, new.first_step_at_us))
        parts[name] = round((next_us - at_us) / S, 3)
        at_us = next_us
    found = resumed.get(new.id)
    step = found.step if found else None
    return {
        "from_generation": old.generation,
        "to_generation": new.generation,
        "reason": old.leave_reason.value if old.leave_reason else None,
        "noticed": bool(heard),
        "began_at": iso(begin_us),
        "overlap": bool(heard) and old.heard_at_us > new.requested_at_us,
        "parts": parts,
        "total_s": round((at_us - begin_us) / S, 3),
        "restore_s": found.restore_s if found else None,
        "resumed_step": step,
        "steps_lost": None if step is None else max(0, old.last_step - step),
    }


def saves(
    rows: Sequence[CheckpointRow], found: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The newest MOST_SAVES checkpoints that were committed, whether they are kept still or not,
    and those that were gone on from, oldest first."""
    ordered = sorted((row for row in rows if row.bytes), key=lambda row: row.committed_at_us)
    resumed = {one["resumed_step"] for one in found}
    older = [row for row in ordered[:-MOST_SAVES] if row.step in resumed]
    return [
        {"generation": row.generation, "step": row.step, "at": iso(row.committed_at_us)}
        for row in [*older, *ordered[-MOST_SAVES:]]
    ]
