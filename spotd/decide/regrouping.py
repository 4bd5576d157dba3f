"""A gang that loses a machine goes on with those that are left, and takes others in later.

Both are the same step: a new attempt, with the machines that are there. It comes when nobody trains
any more: on a notice all save and release, as ever; when one is lost without a word the others are
given up at once, since none of them steps without it. Their agents end what is left of the attempt
before on their machine before they greet, and HEAD is claimed by the new one, as by any.
"""

from __future__ import annotations

from spotd.decide.draft import LEAVING, Draft, place
from spotd.decide.gangs import (
    crew,
    gathered_us,
    joining,
    newcomers,
    remaining,
    size_of,
)
from spotd.decide.leaving import may_save, release_end_us
from spotd.decide.naming import node_id
from spotd.decide.needs import suspect
from spotd.elastic import OnLoss
from spotd.model import Attempt, LeaveReason, Node, S, Severity
from spotd.states import NodeState

KNOWN_OF_MACHINES = (  # whichever attempt they serve
    *("instance_id", "host", "private_host", "port", "ssh_user", "host_public_key"),
    *("cloud_state", "surveyed_at_us", "seen_at_us", "missed_at_us", "renewed_until_us"),
)
REGROWN = "regrown"  # the cause of an attempt that has more machines than the one before


def take_in(d: Draft) -> None:
    """A gang that trains with fewer saves when those that are to join it are ready. What drains
    already, for a notice, takes them in as it stands: see needs.py."""
    left, ready = remaining(d.view, d.now_us), joining(d.view, d.now_us)
    waiting = [node for node in newcomers(d.view) if node.ready_at_us]
    if waiting and not ready:
        d.wake(gathered_us(waiting))
    trains = [node for node in left if node.state is NodeState.RUNNING]
    if not left or not ready or len(trains) < size_of(left[0], d.job.spec):
        return  # nobody trains whom it could disturb
    total = len(left) + len(ready)
    text = f"{_count(ready)} joins it"
    for node in left:
        d.drain(node, LeaveReason.MOVED, text)
    whole = d.job.spec.num_nodes
    d.event("joining", f"{_count(ready)} is ready: the gang saves, and goes on with {total}")
    d.say(f"saving, to go on with {total} of {whole} machines")


def _count(nodes: list[Node]) -> str:
    return "one machine" if len(nodes) == 1 else f"{len(nodes)} machines"


def regroup(d: Draft) -> None:
    """The next attempt, of the machines that are there, once nobody trains any more."""
    left = remaining(d.view, d.now_us)
    if not left or not all(_stands(d, node) for node in left):
        return
    silent = next((node for node in left if suspect(node, d.market, d.now_us)), None)
    if silent is not None:
        d.say(f"{place(silent)} is silent: who goes on is decided when that is known")
        return
    members = [*left, *joining(d.view, d.now_us)]
    if len(members) >= d.job.spec.num_nodes or not _waits(d, left):
        _go_on(d, members)


def _stands(d: Draft, node: Node) -> bool:
    """Its program has ended, or has had its time to; or it waits for one that is gone."""
    late = node.told_release_at_us and d.now_us >= release_end_us(d, node)
    if node.exit_code is not None or late:
        return True
    mine = crew(d.view)
    lost = len(mine) < size_of(node, d.job.spec) or any(one.state in LEAVING for one in mine)
    return lost and not may_save(d, node)


def _waits(d: Draft, left: list[Node]) -> bool:
    """Those that stand still give the missing ones their time, of `wait-then-shrink`."""
    elastic = d.job.spec.elastic
    if elastic.on_loss is not OnLoss.WAIT_THEN_SHRINK:
        return False
    lost_us = [node.terminating_at_us or node.left_at_us for node in crew(d.view)]
    since = max([node.exited_at_us for node in left] + lost_us)
    end_us = since + int(elastic.shrink_after_s * S)
    if d.now_us >= end_us:
        return False
    whole, waits_s = d.job.spec.num_nodes, (end_us - d.now_us) / S
    d.say(f"{len(left)} of {whole} machines wait for the others, for {waits_s:.0f} s at most")
    d.wake(end_us)
    return True


def _go_on(d: Draft, members: list[Node]) -> None:
    before, whole = crew(d.view), d.job.spec.num_nodes
    head_generation = d.job.head.generation if d.job.head else 0
    generation = max(d.job.generation, head_generation) + 1
    grown = len(members) > size_of(before[0], d.job.spec)
    d.open_attempt(Attempt(d.job.id, generation, d.now_us, REGROWN if grown else _cause(before)))
    for rank, old in enumerate(members):
        d.move_node(old, _moved(d, old, rank, len(members)))
    count = len(members)
    if count < whole:
        words = f"{d.job.name} goes on with {count} of {whole} machines, from its last checkpoint"
        d.event("shrunk", words, severity=Severity.WARNING, alert=True, nodes=count, of=whole)
    else:
        words = f"{d.job.name} goes on with all {whole} machines, from its last checkpoint"
        d.event("regrouped", words, alert=grown, nodes=count, of=whole)
    d.say(f"attempt {generation} goes on with {count} of {whole} machines")


def _cause(before: list[Node]) -> str:
    lost = [n for n in before if n.leave_reason not in (None, LeaveReason.MOVED)]
    newest = max(lost, key=lambda node: node.left_at_us, default=None)
    return newest.leave_reason.value if newest and newest.leave_reason else REGROWN


def _moved(d: Draft, old: Node, rank: int, size: int) -> Node:
    """Its row in the attempt just opened: the machine as it is, of whose agent nothing is known.
    To its cloud and to the reaper it is the machine that it was."""
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
        expires_at_us=old.expires_at_us,
        image_id=old.image_id,
        image_setup=old.image_setup,
        **{name: getattr(old, name) for name in KNOWN_OF_MACHINES},
        launched_at_us=d.now_us,
        notices=old.notices,
    )


def send_home(d: Draft) -> None:
    """Newcomers that nobody waits for any more are given back: whom they were to replace trains on,
    or nobody is left to be joined."""
    coming, left = newcomers(d.view), remaining(d.view, d.now_us)
    if left:
        spare = len(left) + len(coming) - d.job.spec.num_nodes
        coming = (
            sorted(coming, key=lambda node: node.ready_at_us or d.now_us)[-spare:]
            if spare > 0
            else []
        )
    elif d.ended or not crew(d.view):
        return
    for node in coming:
        text = "its gang is whole" if left else "nobody is left that it could join"
        d.leave(node, LeaveReason.HEDGE_LOST, text)
