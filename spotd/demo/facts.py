"""Compute the demo's figures from the daemon's rows and the cloud's own billing records."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.store.progress import ProgressRow

SLACK_S = 1.0  # between the end of a machine and the listing that reports it


@dataclass(frozen=True)
class Recovery:
    """The recovery from one lost machine to the next one that trained.

    Times are in seconds since `fault_us`, when the notice was published at the metadata service or
    the machine died. `request_s` is when the next cloud received the launch request, by its clock.
    """

    generation: int
    cloud: str
    to_cloud: str
    kind: str  # "notice" or "death"
    notice_s: float
    fault_us: int
    request_s: float
    instance_s: float
    ssh_s: float
    ready_s: float
    first_step_s: float
    gap_s: float  # without training: from the old machine's last step to the new one's first
    steps_lost: int


def losses_by_generation(progress: Sequence[ProgressRow]) -> dict[int, list[tuple[int, float]]]:
    """Return (step, loss) in order, by generation."""
    losses: dict[int, list[tuple[int, float]]] = {}
    for row in sorted(progress, key=lambda row: (row.generation, row.from_step)):
        pairs = enumerate(row.losses, start=row.from_step)
        losses.setdefault(row.generation, []).extend(pairs)
    return losses


def final_losses(progress: Sequence[ProgressRow]) -> dict[int, float]:
    """Return the loss by step; if steps were trained twice, that of the newest generation."""
    losses: dict[int, float] = {}
    for pairs in losses_by_generation(progress).values():
        losses |= dict(pairs)
    return losses


def recoveries(
    nodes: Sequence[Node],
    progress: Sequence[ProgressRow],
    preemptions: Sequence[Mapping[str, Any]],
    meter: Sequence[Mapping[str, Any]],
) -> list[Recovery]:
    """Return the recovery of every generation whose machine was preempted.

    `preemptions` and `meter` are the cloud's own records.
    """
    requested_us = {str(row["token"]): int(row["launched_at_us"]) for row in meter}
    trained = [node for node in nodes if node.training.first_step_at_us and node.rank == 0]
    trained.sort(key=lambda node: node.generation)
    preempted_ids = {str(preemption["instance_id"]) for preemption in preemptions}
    pairs = itertools.pairwise(trained)
    return [
        _recovery(old, new, progress, preemptions, requested_us[new.token])
        for old, new in pairs
        if old.instance_id in preempted_ids
    ]


def _recovery(
    old: Node,
    new: Node,
    progress: Sequence[ProgressRow],
    preemptions: Sequence[Mapping[str, Any]],
    requested_us: int,
) -> Recovery:
    preemption = next(row for row in preemptions if row["instance_id"] == old.instance_id)
    with_notice = preemption["mode"] == "notice"
    fault_us = int(preemption["published_at_us"] if with_notice else preemption["reclaimed_at_us"])
    before = [row for row in progress if row.generation == old.generation]
    after = [row for row in progress if row.generation == new.generation]
    last_step, last_us = max((row.to_step, row.last_at_us) for row in before)
    first_step, first_us = min((row.from_step, row.first_at_us) for row in after)

    def since(at_us: int) -> float:
        return round((at_us - fault_us) / S, 3)

    return Recovery(
        generation=old.generation,
        cloud=old.offer.cloud,
        to_cloud=new.offer.cloud,
        kind="notice" if with_notice else "death",
        notice_s=float(preemption["notice_s"]) if with_notice else 0.0,
        fault_us=fault_us,
        request_s=since(requested_us),
        instance_s=since(new.machine.launched_at_us),
        ssh_s=since(new.startup.hello_at_us),
        ready_s=since(new.startup.ready_at_us),
        first_step_s=since(first_us),
        gap_s=round((first_us - last_us) / S, 3),
        steps_lost=max(0, last_step + unreported_steps(before, fault_us) - (first_step - 1)),
    )


def unreported_steps(progress: Sequence[ProgressRow], fault_us: int) -> int:
    """Estimate the steps that a machine trained after its last report, at its own speed.

    0 if it reported after `fault_us`.
    """
    first_us = min(row.first_at_us for row in progress)
    last_us = max(row.last_at_us for row in progress)
    steps = max(row.to_step for row in progress) - min(row.from_step for row in progress)
    if steps <= 0 or last_us <= first_us:
        return 0
    return max(0, (fault_us - last_us) * steps // (last_us - first_us))


def orphan_seconds(nodes: Sequence[Node], meter: Sequence[Mapping[str, Any]], now_us: int) -> float:
    """Return the billed machine-seconds that the daemon did not know of.

    They are those of an unknown token, of a second machine with the same token, and those after
    the daemon recorded the node as gone, less SLACK_S for a listing on its way. Machines that
    were known but terminated late are counted by `release_delays`.
    """
    by_token = {node.token: node for node in nodes}
    total = 0.0
    for row in meter:
        node = by_token.pop(str(row["token"]), None)
        end_us = int(row["ended_at_us"] or now_us)
        if node is None:
            total += float(row["seconds"])
        elif node.machine.gone_at_us:
            total += max(0.0, (end_us - node.machine.gone_at_us) / S - SLACK_S)
        elif not row["ended_at_us"]:
            total += float(row["seconds"])
    return round(total, 3)


def release_delays(
    nodes: Sequence[Node], meter: Sequence[Mapping[str, Any]], now_us: int
) -> dict[str, float]:
    """Return the seconds by node id that its machine was billed after it was not needed any more.

    0 for a machine that the cloud took away before.
    """
    by_token = {node.token: node for node in nodes}
    delays: dict[str, float] = {}
    for row in meter:
        node = by_token.get(str(row["token"]))
        released_us = _released_us(node) if node is not None else 0
        if node is not None and released_us:
            end_us = int(row["ended_at_us"] or now_us)
            seconds = round(max(0, end_us - released_us) / S, 3)
            delays[node.id] = max(seconds, delays.get(node.id, 0.0))
    return delays


def _released_us(node: Node) -> int:
    """Return when the node was not needed any more; 0 while it is needed.

    That is when its program exited; otherwise when its termination was decided, or, if it was
    drained, the deadline of its notice.
    """
    if node.training.exited_at_us:
        return node.training.exited_at_us
    deadlines = [notice.deadline_us or 0 for notice in node.notices if notice.takes_machine]
    return (
        max(node.departure.left_at_us, *deadlines, 0)
        if node.departure.drained_at_us
        else node.departure.left_at_us
    )
