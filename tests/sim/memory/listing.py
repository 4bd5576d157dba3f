"""A cloud's complete listing, compared with the nodes that we think we have there."""

from __future__ import annotations

from collections.abc import Sequence

from providers.base import Instance, InstanceState, Notice
from spotd.domain.market import Refusal
from spotd.domain.node import Node
from spotd.store import instances
from spotd.store.instances import ENDED, Listing
from spotd.store.notices import from_cloud
from tests.sim.memory import ledger, market, nodes, notices
from tests.sim.memory.columns import NodeColumns
from tests.sim.memory.transaction import Transaction


def record_listing(tx: Transaction, said: Listing) -> list[Instance]:
    """See Store.instances.record_listing."""
    active = (tx.tables.nodes[node_id] for node_id in sorted(tx.tables.active))
    before = [node for node in active if node.offer.provider == said.provider]
    rows = [NodeColumns(node) for node in before]
    found = instances.matched(rows, said.instances)
    told = [row.node for row in rows if instances.tells(row, found.get(row.id), said)]
    tx.touch(dict.fromkeys((node.job_id for node in told), said.at_us))
    news = {node.id for node in told}
    for node in before:
        instance = found.get(node.id)
        if node.id not in news:
            shown = instance is not None and instance.state is not InstanceState.FAILED
            _note_time(tx, node, said.asked_at_us, shown=shown)
        elif instance is None:
            _unlisted(tx, node, said)
        elif instances.came_to_nothing(NodeColumns(node), instance):
            _failed(tx, node, instance, said)
        else:
            _listed(tx, node, instance, said)
    strays = instances.unwanted(said, found)
    ledger.count_strays(tx, said.provider, strays, said.asked_at_us, said.at_us)
    return strays


def _note_time(tx: Transaction, node: Node, asked_at_us: int, *, shown: bool) -> None:
    """That the cloud was asked, and said nothing new about this node."""
    times = {"surveyed_at_us": max(node.machine.surveyed_at_us, asked_at_us)}
    if shown:
        times["seen_at_us"] = max(node.machine.seen_at_us, asked_at_us)
    tx.change_node(node, **times)


def _unlisted(tx: Transaction, node: Node, said: Listing) -> None:
    if said.proves_absent(NodeColumns(node)):
        ledger.end(tx, node.id, node.machine.gone_at_us or said.at_us)
    tx.change_node(node, **instances.unlisted(NodeColumns(node), said))


def _listed(tx: Transaction, node: Node, instance: Instance, said: Listing) -> None:
    adopted = node
    if not node.instance_id:
        adopted = nodes.adopt(tx, node, instance.instance_id, said.at_us)
    if not node.machine.seen_at_us:
        ledger.backdate(tx, node.id, instances.born_us(NodeColumns(node), instance))
    if instance.state in ENDED:
        ledger.end(tx, node.id, node.machine.gone_at_us or said.at_us)
    elif node.machine.gone_at_us and node.instance_id:
        ledger.confirm(tx, node.id, said.at_us)  # a listing had missed it, and it lives
    tx.change_node(adopted, **instances.listed(NodeColumns(node), instance, said))


def _failed(tx: Transaction, node: Node, instance: Instance, said: Listing) -> None:
    """The cloud accepted the create and could not fulfil it: a refusal that came late."""
    image = tx.tables.jobs[node.job_id].spec.resources.image_id
    code = instances.failure_code(instance, image)
    tx.change_node(node, **instances.failed(NodeColumns(node), instance, said, code))
    if not node.machine.gone_at_us:
        ledger.void(tx, node.id, said.at_us)
        scope = instances.scope_of(code)
        market.refuse(tx, Refusal(node.offer.key, scope, code, said.at_us, node.id))


def record_cloud_notices(
    tx: Transaction, provider: str, warnings: Sequence[Notice], at_us: int
) -> None:
    """See Store.instances.record_notices; notices about unknown machines are ignored."""
    ids = {notice.instance_id for notice in warnings if notice.instance_id}
    if not ids:
        return
    ours = {
        node.instance_id: node
        for node in sorted(tx.tables.nodes.values(), key=lambda node: (node.generation, node.id))
        if node.instance_id in ids and node.offer.provider == provider
    }
    known = [(ours[n.instance_id], n) for n in warnings if n.instance_id in ours]
    tx.touch(dict.fromkeys((node.job_id for node, _ in known), at_us))
    notices.record(tx, [from_cloud(NodeColumns(node), notice, at_us) for node, notice in known])
