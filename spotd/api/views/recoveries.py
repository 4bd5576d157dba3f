"""The hand-overs of a job: the time of each part, and the work lost.

A hand-over is the change from one attempt to a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from spotd.api.views.resources import iso
from spotd.domain.lost_work import LostWork
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.store.checkpoints import CheckpointRow
from spotd.store.events import EventRow
from spotd.wire import EXIT_UNFIT

MOST_SAVES = 200
# Each part is named by the event that ends it.
PARTS = ("detect_s", "request_s", "instance_s", "agent_s", "ready_s", "claim_s", "first_step_s")


def restore_times(rows: Sequence[EventRow]) -> dict[str, float]:
    """Return the seconds that each machine took to read its checkpoint, by node id.

    They are part of `first_step_s`, and come from events of the kind "claimed".
    """
    times = {}
    for row in rows:
        if isinstance(restore_s := row.event.data.get("restore_s"), float):
            times[row.event.node_id] = restore_s
    return times


def hand_overs(
    nodes: Sequence[Node], lost: Mapping[int, LostWork], restore_s: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return each hand-over between the rank 0 machines of consecutive attempts, oldest first.

    Only attempts that trained count. All times are seconds. The parts add up to `total_s`, which
    runs from the notice, otherwise the last sign of life of the old machine, to the first step of
    the new one. `overlap`: the old machine kept training meanwhile, after a notice. `failed`: its
    program had failed by itself, so that this was no recovery. `lost` is by generation; its fields
    are null where they are not known. `restore_s` is by node id.
    """
    leaders: dict[int, Node] = {}
    for node in sorted(nodes, key=lambda node: node.training.first_step_at_us):
        if node.training.first_step_at_us and node.rank == 0 and not node.moved_at_us:
            leaders[node.generation] = node
    ordered = [leaders[number] for number in sorted(leaders)]
    return [
        _hand_over(old, new, lost[new.generation], restore_s.get(new.id))
        for old, new in pairwise(ordered)
    ]


def _hand_over(old: Node, new: Node, lost: LostWork, restore_s: float | None) -> dict[str, Any]:
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
    return {
        "from_generation": old.generation,
        "to_generation": new.generation,
        "reason": old.departure.leave_reason.value if old.departure.leave_reason else None,
        "noticed": bool(notice_times),
        "began_at": iso(begin_us),
        "overlap": bool(notice_times) and old.agent.heard_at_us > new.requested_at_us,
        "parts": parts,
        "total_s": round((at_us - begin_us) / S, 3),
        "failed": old.program_failed and old.training.exit_code != EXIT_UNFIT,
        "restore_s": restore_s,
        "resumed_step": new.training.resumed_step,
        "anew": lost.anew,
        "steps_lost": lost.steps,
        "lost_s": None if lost.seconds is None else round(lost.seconds, 3),
        "lost_usd": None if lost.microusd is None else lost.microusd / 1e6,
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
