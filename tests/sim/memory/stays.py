"""What became of the machines that were asked for."""

from __future__ import annotations

from spotd.domain.node import Node
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.states import NodeState
from spotd.store.node_history import MOST_STAYS
from tests.sim.memory.tables import Tables


def past(tables: Tables, since_us: int, now_us: int) -> FleetHistory:
    """See Store.node_history.fleet."""
    found = [node for node in tables.nodes.values() if _counts(node, since_us)]
    found.sort(key=lambda node: (node.requested_at_us, node.id))
    return FleetHistory(tuple(_stay(node) for node in found[-MOST_STAYS:]), since_us, now_us)


def _counts(node: Node, since_us: int) -> bool:
    lives = node.state is not NodeState.GONE and node.machine.launched_at_us
    return node.requested_at_us > since_us or bool(lives)


def _stay(node: Node) -> NodeLifetime:
    return NodeLifetime(
        node_id=node.id,
        offer_key=node.offer.key,
        asked_at_us=node.moved_at_us or node.requested_at_us,
        refused="" if node.instance_id else node.machine.launch_error_code,
        began_at_us=node.machine.launched_at_us,
        trained_at_us=0 if node.moved_at_us else node.training.first_step_at_us,
        until_us=node.departure.left_at_us or max(node.agent.heard_at_us, node.machine.seen_at_us),
        left=node.departure.leave_reason,
    )
