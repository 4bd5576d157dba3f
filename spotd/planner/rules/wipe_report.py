"""Record whether the disks of a machine that is gone were wiped."""

from __future__ import annotations

from spotd.domain.node import Node
from spotd.domain.states import LeaveReason
from spotd.domain.units import S
from spotd.planner.core.plan_builder import PlanBuilder, place


def record_wipe(d: PlanBuilder, node: Node, reason: LeaveReason) -> None:
    """Add an event about whether, where, when and how the node's disks were wiped.

    There is no event for a node that never had data on them. The cloud discards disks in any case;
    the event records the node's own report.
    """
    if not node.startup.booted_at_us:
        return
    where = f"{place(node)}, {node.offer.region}"
    wiped = bool(node.storage.wiped_at_us)
    after_s = max(0.0, (node.storage.wiped_at_us - node.training.exited_at_us) / S)
    text = (
        f"{where}: disks wiped {after_s:.1f} s after the program ended: {node.storage.wiped_text}"
        if wiped
        else f"{where}: disks not wiped, as far as known: {reason.value}"
    )
    d.event(
        "wipe",
        text,
        node,
        region=node.offer.region,
        instance=node.instance_id,
        wiped_at_us=node.storage.wiped_at_us,
        how=node.storage.wiped_text,
        why_not="" if wiped else reason.value,
    )
