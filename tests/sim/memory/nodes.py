"""What effects learned about nodes: one call, one outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from providers.base import Scope
from providers.images import Image, ImageState
from spotd.domain.market import Refusal
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.store.images import ImageRow
from spotd.store.nodes import WORKED, acknowledged, launched, refused, starts_to_cost
from tests.sim.memory import images, ledger, market
from tests.sim.memory.columns import NodeColumns
from tests.sim.memory.tables import Failures, Tables
from tests.sim.memory.transaction import Transaction, counted_failures

_LEAVING = frozenset({NodeState.TERMINATING, NodeState.GONE})


def _touched(tx: Transaction, node_id: str, at_us: int) -> Node | None:
    """The node, its job noted; None for an id that nobody knows."""
    node = tx.tables.nodes.get(node_id)
    if node is not None:
        tx.touch({node.job_id: at_us})
    return node


def _worked(tx: Transaction, node: Node, **fields: object) -> Node:
    """A call for the node went well: its failures are forgotten."""
    tx.drop(tx.tables.failures, node.id)
    return tx.change_node(node, **{**fields, **WORKED})


def record_launched(tx: Transaction, node_id: str, instance_id: str, at_us: int) -> None:
    """See Store.nodes.record_launched; the first report counts."""
    node = _touched(tx, node_id, at_us)
    if node is not None:
        adopt(tx, node, instance_id, at_us)


def adopt(tx: Transaction, node: Node, instance_id: str, at_us: int) -> Node:
    """The node has a machine, however we came to know."""
    row = NodeColumns(node)
    if starts_to_cost(row):
        ledger.confirm(tx, node.id, at_us)
    said = launched(row, instance_id, at_us)
    return tx.change_node(node, **said) if node.instance_id else _worked(tx, node, **said)


def record_launch_refused(
    tx: Transaction, node_id: str, code: str, text: str, scope: Scope, at_us: int
) -> None:
    """See Store.nodes.record_launch_refused. A machine that is known already is not refused, and a
    refusal that a listing told of is not told twice."""
    node = _touched(tx, node_id, at_us)
    if node is None or node.instance_id or node.machine.gone_at_us:
        return
    said = refused(NodeColumns(node), code, text, at_us)
    if "gone_at_us" in said:
        ledger.void(tx, node_id, at_us)
    tx.change_node(node, **said)
    market.refuse(tx, Refusal(node.offer.key, scope, code, at_us, node_id))


def record_absent(tx: Transaction, node_id: str, at_us: int) -> None:
    """See Store.nodes.record_absent. A machine that is known already is not absent."""
    node = _touched(tx, node_id, at_us)
    if node is not None and not node.instance_id:
        tx.change_node(node, cloud_state="absent", gone_at_us=node.machine.gone_at_us or at_us)
        ledger.void(tx, node_id, at_us)


def record_effect_failed(
    tx: Transaction, node_id: str, effect: EffectKind, text: str, at_us: int, pause_s: float
) -> None:
    """Counts failures in a row of the same effect. One that the cloud wants us to wait after counts
    from the end of that pause."""
    node = _touched(tx, node_id, at_us)
    if node is not None:
        before = tx.tables.failures.get(node_id)
        count = before.count + 1 if before is not None and before.effect is effect else 1
        failures = Failures(effect, count, at_us + int(pause_s * S))
        tx.put(tx.tables.failures, node_id, failures)
        tx.change_node(node, effect_error=text, **counted_failures(node, failures))


def record_booted(tx: Transaction, node_id: str, at_us: int) -> None:
    """The agent was shipped and started, the first time or again."""
    node = _touched(tx, node_id, at_us)
    if node is not None:
        _worked(tx, node, booted_at_us=at_us)


def record_told(tx: Transaction, node_id: str, effect: EffectKind, at_us: int, claim: str) -> None:
    """See Store.nodes.record_acknowledged."""
    node = _touched(tx, node_id, at_us)
    if node is not None:
        _worked(tx, node, **acknowledged(effect, at_us, claim))


def record_lent(tx: Transaction, node_id: str, at_us: int, until_us: int) -> None:
    """See Store.nodes.record_credential_lease."""
    node = tx.tables.nodes.get(node_id)
    if node is not None and node.lease.lent_until_us < until_us:
        tx.change_node(node, lent_at_us=at_us, lent_until_us=until_us)


def record_cleaned(tx: Transaction, image: ImageRow, at_us: int) -> None:
    """See Store.nodes.record_cleaned."""
    node = _touched(tx, image.node_id, at_us)
    if node is not None:
        _worked(tx, node, cleaned_at_us=at_us)
        images.adopt(tx, image)


def record_image(tx: Transaction, node_id: str, image: Image, at_us: int) -> None:
    """See Store.nodes.record_image."""
    node = _touched(tx, node_id, at_us)
    if node is None:
        return
    said: dict[str, object] = {"image_asked_at_us": at_us}
    known: dict[str, object] = {"region": image.region}
    if image.image_id:
        known["image_id"] = image.image_id
    if image.size_gib:
        known["size_gib"] = image.size_gib
    if image.state is ImageState.FAILED:
        said["image_error"] = image.error or "the cloud reports that it failed"
    elif image.state is ImageState.AVAILABLE and node.state not in _LEAVING:
        said["imaged_at_us"] = known["made_at_us"] = at_us
    _worked(tx, node, **said)
    images.change(tx, node_id, **known)


def record_heard(tx: Transaction, heard: Mapping[str, int]) -> None:
    """See Store.nodes.record_heartbeats."""
    known = (tx.tables.nodes.get(node_id) for node_id in sorted(heard))
    nodes = [node for node in known if node is not None]
    tx.touch({node.job_id: heard[node.id] for node in nodes if node.agent.link_down_at_us > 0})
    for node in nodes:
        at_us = max(node.agent.heard_at_us, heard[node.id])
        tx.change_node(node, heard_at_us=at_us, link_down_at_us=0)


def record_link(tx: Transaction, node_id: str, down_at_us: int) -> None:
    """See Store.nodes.record_link; the first loss counts until the link is up again."""
    node = tx.tables.nodes.get(node_id)
    if node is not None and (node.agent.link_down_at_us > 0) != (down_at_us > 0):
        tx.touch({node.job_id: down_at_us})
        tx.change_node(node, link_down_at_us=down_at_us)


def note_silent(tx: Transaction, before_us: int) -> None:
    """See Store.nodes.mark_silent_due."""
    nodes = (tx.tables.nodes[node_id] for node_id in tx.tables.active)
    silent = (node for node in nodes if _is_silent(node, before_us))
    tx.touch(dict.fromkeys((node.job_id for node in silent), before_us))


def _is_silent(node: Node, before_us: int) -> bool:
    if node.state in _LEAVING or node.training.exit_code is not None:
        return False
    return 0 < node.startup.booted_at_us < before_us and node.agent.heard_at_us < before_us


def job_nodes(tables: Tables, job_id: str) -> list[Node]:
    """See Store.nodes.of_job."""
    return [tables.nodes[node_id] for node_id in tables.nodes_of.get(job_id, ())]


def active_nodes(tables: Tables) -> list[Node]:
    """See Store.nodes.active."""
    return tables.by_age(tables.active)


def nodes_of_provider(tables: Tables, provider: str, limit: int) -> list[Node]:
    """See Store.nodes.of_provider."""
    found = [node.id for node in tables.nodes.values() if node.offer.provider == provider]
    return tables.by_age(found)[-limit:]


def booted_nodes(tables: Tables) -> dict[str, NodeState]:
    """See Store.nodes.booted."""
    nodes = (tables.nodes[node_id] for node_id in tables.active)
    return {
        node.id: node.state
        for node in nodes
        if node.startup.booted_at_us > 0 and node.call.effect is not EffectKind.IMAGE
    }


def find_nodes(tables: Tables, node_ids: Sequence[str]) -> list[Node]:
    """See Store.nodes.find."""
    return tables.by_age(wanted for wanted in dict.fromkeys(node_ids) if wanted in tables.nodes)
