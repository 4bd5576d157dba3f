"""The lifetimes of machines."""

from __future__ import annotations

from spotd.domain.node import Node
from spotd.history.interruption_stats import MachineLife
from spotd.wire import DRILL_SOURCE
from tests.sim.memory.tables import Tables


def machine_lives(tables: Tables, since_us: int) -> list[MachineLife]:
    """See Store.node_history.machine_lives."""
    found = []
    for node in tables.by_age(tables.nodes):
        began_us = tables.jobs[node.job_id].progress.first_step_at_us
        life = _life(node, began_us)
        if node.requested_at_us >= since_us or life.ended_us > since_us:
            found.append(life)
    return found


def _life(node: Node, began_us: int) -> MachineLife:
    resumes = not node.rank and 0 < began_us < node.training.claimed_at_us
    told = [n for n in node.notices if n.takes_machine and n.source != DRILL_SOURCE]
    ended_us = node.departure.left_at_us or max(node.agent.heard_at_us, node.machine.seen_at_us)
    deadlines = [one.deadline_us for one in told if one.deadline_us is not None]
    return MachineLife(
        offer_key=node.offer.key,
        cloud=node.offer.cloud,
        requested_us=node.requested_at_us,
        launched_us=node.machine.launched_at_us,
        hello_us=node.startup.hello_at_us,
        ended_us=ended_us if node.machine.launched_at_us else 0,
        reason=node.departure.leave_reason,
        refused=node.machine.launch_error_code,
        notice_us=min((notice.heard_at_us for notice in told), default=0),
        deadline_us=min(deadlines, default=None),
        heard_us=node.agent.heard_at_us,
        returned=bool(node.training.released_at_us or node.training.exited_at_us),
        accelerator=node.offer.accelerator,
        accelerator_count=node.offer.accelerator_count,
        resumed_us=node.training.claimed_at_us if resumes else 0,
        trained_us=node.training.first_step_at_us,
        anew=resumes and node.training.resumed_step == 0,
    )
