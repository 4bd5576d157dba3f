"""Shrink a gang to its remaining machines when one is lost, and admit new ones later.

Both are the same step: a new attempt with the existing machines, once no rank trains. After a
notice all ranks save and release as usual. If one is lost without a notice, the others' attempt is
given up at once, because no rank can step without it. Their agents end the earlier attempt on their
machine before they report to the new one, and the new attempt claims HEAD like any other.
"""

from __future__ import annotations

from dataclasses import fields

from spotd.domain.events import Severity
from spotd.domain.job import Attempt
from spotd.domain.node import MachineStatus, Node, NodeAddress, NodeLease, NodeStartup
from spotd.domain.on_node_loss import OnNodeLoss
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.core.gangs import crew, gathered_us, joining, newcomers, remaining, size_of
from spotd.planner.core.next_effect import suspect
from spotd.planner.core.node_names import node_id
from spotd.planner.core.plan_builder import LEAVING, PlanBuilder, place
from spotd.planner.rules.replace_node import may_save, release_end_us

KNOWN_OF_MACHINES = (  # whichever attempt they serve
    "instance_id",
    *(item.name for item in fields(NodeAddress)),
    "cloud_state",
    "surveyed_at_us",
    "seen_at_us",
    "missed_at_us",
    "renewed_until_us",
)
REGROWN = "regrown"  # the cause of an attempt that has more machines than the one before


def take_in(d: PlanBuilder) -> None:
    """Make a smaller gang save when the machines that will join it are ready.

    A gang that already drains because of a notice admits them as it is: see core/next_effect.py.
    """
    left, ready = remaining(d.view, d.now_us), joining(d.view, d.now_us)
    waiting = [node for node in newcomers(d.view) if node.startup.ready_at_us]
    if waiting and not ready:
        d.wake_at(gathered_us(waiting))
    trains = [node for node in left if node.state is NodeState.RUNNING]
    if not left or not ready or len(trains) < size_of(left[0], d.job.spec):
        return  # nobody trains whom it could disturb
    total = len(left) + len(ready)
    text = f"{_count(ready)} joins it"
    for node in left:
        d.drain(node, LeaveReason.MOVED, text)
    whole = d.job.spec.resources.num_nodes
    d.event("joining", f"{_count(ready)} is ready: the gang saves, and continues with {total}")
    d.add_reason(f"saving, to continue with {total} of {whole} machines")


def _count(nodes: list[Node]) -> str:
    return "one machine" if len(nodes) == 1 else f"{len(nodes)} machines"


def regroup(d: PlanBuilder) -> None:
    """Open the next attempt with the existing machines, once no rank trains."""
    left = remaining(d.view, d.now_us)
    if not left or not all(_stands(d, node) for node in left):
        return
    silent = next((node for node in left if suspect(node, d.market, d.now_us)), None)
    if silent is not None:
        d.add_reason(
            f"{place(silent)} is silent: spotd decides who continues when that is resolved"
        )
        return
    members = [*left, *joining(d.view, d.now_us)]
    if len(members) >= d.job.spec.resources.num_nodes or not _waits(d, left):
        _go_on(d, members)


def _stands(d: PlanBuilder, node: Node) -> bool:
    """Return whether the program has ended or had its time to, or waits for a rank that is gone."""
    late = node.agent.told_release_at_us and d.now_us >= release_end_us(d, node)
    if node.training.exit_code is not None or late:
        return True
    mine = crew(d.view)
    lost = len(mine) < size_of(node, d.job.spec) or any(one.state in LEAVING for one in mine)
    return lost and not may_save(d, node)


def _waits(d: PlanBuilder, left: list[Node]) -> bool:
    """Return whether the remaining ranks still wait for missing ones (`wait-then-shrink`)."""
    elastic = d.job.spec.resources.elastic
    if elastic.on_loss is not OnNodeLoss.WAIT_THEN_SHRINK:
        return False
    lost_us = [
        node.departure.terminating_at_us or node.departure.left_at_us for node in crew(d.view)
    ]
    since = max([node.training.exited_at_us for node in left] + lost_us)
    end_us = since + int(elastic.shrink_after_s * S)
    if d.now_us >= end_us:
        return False
    whole, waits_s = d.job.spec.resources.num_nodes, (end_us - d.now_us) / S
    d.add_reason(
        f"{len(left)} of {whole} machines wait for the others, for {waits_s:.0f} s at most"
    )
    d.wake_at(end_us)
    return True


def _go_on(d: PlanBuilder, members: list[Node]) -> None:
    before, whole = crew(d.view), d.job.spec.resources.num_nodes
    head_generation = d.job.head.generation if d.job.head else 0
    generation = max(d.job.generation, head_generation) + 1
    grown = len(members) > size_of(before[0], d.job.spec)
    d.open_attempt(Attempt(d.job.id, generation, d.now_us, REGROWN if grown else _cause(before)))
    for rank, old in enumerate(members):
        d.move_node(old, _moved(d, old, rank, len(members)))
    count = len(members)
    if count < whole:
        words = f"{d.job.name} continues with {count} of {whole} machines, from its last checkpoint"
        d.event("shrunk", words, severity=Severity.WARNING, alert=True, nodes=count, of=whole)
    else:
        words = f"{d.job.name} continues with all {whole} machines, from its last checkpoint"
        d.event("regrouped", words, alert=grown, nodes=count, of=whole)
    d.add_reason(f"attempt {generation} continues with {count} of {whole} machines")


def _cause(before: list[Node]) -> str:
    lost = [n for n in before if n.departure.leave_reason not in (None, LeaveReason.MOVED)]
    newest = max(lost, key=lambda node: node.departure.left_at_us, default=None)
    return (
        newest.departure.leave_reason.value if newest and newest.departure.leave_reason else REGROWN
    )


def _moved(d: PlanBuilder, old: Node, rank: int, size: int) -> Node:
    """Return the node's row in the new attempt: the same machine, with an agent of unknown state.

    To its cloud and to the reaper it is the machine that it was.
    """
    return Node(
        id=node_id(d.job.id, d.job.generation, rank, 0),
        job_id=d.job.id,
        generation=d.job.generation,
        rank=rank,
        candidate=0,
        token=old.token,
        offer=old.offer,
        state=NodeState.BOOTING,
        requested_at_us=old.requested_at_us,
        moved_at_us=d.now_us,
        gang_size=size,
        chosen=True,
        instance_id=old.instance_id,
        notices=old.notices,
        startup=NodeStartup(old.startup.image_id, old.startup.image_setup),
        machine=MachineStatus(
            launched_at_us=d.now_us,
            cloud_state=old.machine.cloud_state,
            surveyed_at_us=old.machine.surveyed_at_us,
            seen_at_us=old.machine.seen_at_us,
            missed_at_us=old.machine.missed_at_us,
        ),
        address=old.address,
        lease=NodeLease(old.lease.expires_at_us, old.lease.renewed_until_us),
    )


def send_home(d: PlanBuilder) -> None:
    """Terminate newcomers that are no longer needed.

    Either the machine that they were requested to replace still trains, or no gang is left to join.
    """
    coming, left = newcomers(d.view), remaining(d.view, d.now_us)
    if left:
        spare = len(left) + len(coming) - d.job.spec.resources.num_nodes
        coming = (
            sorted(coming, key=lambda node: node.startup.ready_at_us or d.now_us)[-spare:]
            if spare > 0
            else []
        )
    elif d.ended or not crew(d.view):
        return
    for node in coming:
        text = "its gang is complete" if left else "no gang is left that it could join"
        d.terminate(node, LeaveReason.HEDGE_LOST, text)
