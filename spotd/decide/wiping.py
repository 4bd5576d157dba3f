"""What the record says about the disks of a machine that is gone."""

from __future__ import annotations

from spotd.decide.draft import Draft, place
from spotd.model import LeaveReason, Node, S


def record_wipe(d: Draft, node: Node, reason: LeaveReason) -> None:
    """Whether the node's disks were wiped before it went, where, when and how; nothing for one that
    never had anything on them. A cloud discards them in any case: what we know is what the node
    said."""
    if not node.booted_at_us:
        return
    where = f"{place(node)}, {node.offer.region}"
    wiped = bool(node.wiped_at_us)
    after_s = max(0.0, (node.wiped_at_us - node.exited_at_us) / S)
    text = (
        f"{where}: disks wiped {after_s:.1f} s after the program ended: {node.wiped_text}"
        if wiped
        else f"{where}: disks not wiped, as far as we know: {reason.value}"
    )
    d.event(
        "wipe",
        text,
        node,
        region=node.offer.region,
        instance=node.instance_id,
        wiped_at_us=node.wiped_at_us,
        how=node.wiped_text,
        why_not="" if wiped else reason.value,
    )
