"""Nodes, and the results of calls to their clouds and agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, case, func, select, update

from providers.base import Scope
from providers.images import Image, ImageState
from spotd.domain.node import EffectKind, Node
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.store import images, ledger, market, schema
from spotd.store.images import ImageRow
from spotd.store.rows import NOT_GONE, ZERO, NodeRow, nodes_query, read_nodes
from spotd.store.session import Repository, read_one, write, write_urgent
from spotd.store.transaction import Transaction

_nodes = schema.nodes.c
_TOLD = {
    EffectKind.RELEASE: "told_release_at_us",
    EffectKind.DRAIN: "told_drain_at_us",
    EffectKind.SAVE: "told_save_at_us",
    EffectKind.TERMINATE: "terminated_at_us",
}
_HEARD = (
    update(schema.nodes)
    .where(_nodes.id == bindparam("node"))
    .values(
        heard_at_us=case(
            (_nodes.heard_at_us > bindparam("at"), _nodes.heard_at_us), else_=bindparam("at")
        ),
        link_down_at_us=0,
    )
)
_OF_JOB = nodes_query(_nodes.job_id == bindparam("job"))
_ACTIVE = nodes_query(NOT_GONE)
_SOME = nodes_query(_nodes.id.in_(bindparam("nodes", expanding=True)))
_MANY = 500  # ids in one statement: databases take some ten thousands of parameters, and no more
# But those whose disk is cleaned: they accept no login, and had reported everything before.
_BOOTED = select(_nodes.id, _nodes.state).where(
    NOT_GONE,
    _nodes.booted_at_us > 0,
    func.coalesce(_nodes.effect, "") != EffectKind.IMAGE.value,
)
_DOWN = select(_nodes.id, _nodes.job_id).where(_nodes.link_down_at_us > ZERO)
_SILENT = select(_nodes.job_id).where(
    _nodes.state.not_in((NodeState.TERMINATING.value, NodeState.GONE.value)),
    _nodes.booted_at_us > 0,
    _nodes.booted_at_us < bindparam("before"),
    _nodes.heard_at_us < bindparam("before"),
    _nodes.exit_code.is_(None),
)
_LEAVING = (NodeState.TERMINATING.value, NodeState.GONE.value)
WORKED = {"effect_failures": 0, "effect_failed_at_us": 0, "effect_error": ""}


class NodeRepository(Repository):
    """Nodes: one call, one outcome, one row."""

    @write
    def record_cleaned(self, tx: Transaction, image: ImageRow, at_us: int) -> None:
        """Record that the node's disk is clean and `image` is about to be requested.

        It is on record before the first call that could create the image.
        """
        if _touched(tx, image.node_id, at_us) is not None:
            change(tx.conn, image.node_id, cleaned_at_us=at_us, **WORKED)
            images.adopt(tx, image)

    @write
    def record_image(self, tx: Transaction, node_id: str, image: Image, at_us: int) -> None:
        """Record the state of the image of that node's disk.

        An image whose node is being terminated is not recorded as made: the sweep may be deleting
        it.
        """
        row = _touched(tx, node_id, at_us)
        if row is None:
            return
        values: dict[str, object] = {"image_asked_at_us": at_us, **WORKED}
        known: dict[str, object] = {"region": image.region}
        if image.image_id:
            known["image_id"] = image.image_id
        if image.size_gib:
            known["size_gib"] = image.size_gib
        if image.state is ImageState.FAILED:
            values["image_error"] = image.error or "the cloud reports that it failed"
        elif image.state is ImageState.AVAILABLE and row.state not in _LEAVING:
            values["imaged_at_us"] = known["made_at_us"] = at_us
        change(tx.conn, node_id, **values)
        images.change(tx, node_id, **known)

    @write
    def record_launched(self, tx: Transaction, node_id: str, instance_id: str, at_us: int) -> None:
        """Record the instance of a launch. The first report counts."""
        row = _touched(tx, node_id, at_us)
        if row is not None:
            adopt(tx, row, instance_id, at_us)

    @write
    def record_launch_refused(
        self, tx: Transaction, node_id: str, code: str, text: str, scope: Scope, at_us: int
    ) -> None:
        """Record why a launch was refused.

        A node with a known instance is not refused, and a refusal that a listing reported is not
        repeated.
        """
        row = _touched(tx, node_id, at_us)
        if row is None or row.instance_id or row.gone_at_us:
            return
        values = refused(row, code, text, at_us)
        if "gone_at_us" in values:
            ledger.void(tx.conn, node_id, at_us)
        change(tx.conn, node_id, **values)
        market.refuse(tx, node_id, row.offer_key, code, scope, at_us)

    @write
    def record_absent(self, tx: Transaction, node_id: str, at_us: int) -> None:
        """Record that a launch of unknown outcome created nothing: no instance has its token."""
        row = _touched(tx, node_id, at_us)
        if row is None or row.instance_id:
            return
        change(tx.conn, node_id, cloud_state="absent", gone_at_us=row.gone_at_us or at_us)
        ledger.void(tx.conn, node_id, at_us)

    @write
    def record_effect_failed(
        self,
        tx: Transaction,
        node_id: str,
        effect: EffectKind,
        text: str,
        at_us: int,
        pause_s: float = 0.0,
    ) -> None:
        """Record that a call failed, and that it is not to be repeated for `pause_s`."""
        row = _touched(tx, node_id, at_us)
        if row is not None:
            again = row.effect_failed_kind == effect.value
            change(
                tx.conn,
                node_id,
                effect_failed_kind=effect.value,
                effect_failed_at_us=at_us + int(pause_s * S),
                effect_failures=row.effect_failures + 1 if again else 1,
                effect_error=text,
            )

    @write
    def record_booted(self, tx: Transaction, node_id: str, at_us: int) -> None:
        """Record that the node's agent was started."""
        row = _touched(tx, node_id, at_us)
        if row is not None:
            change(tx.conn, node_id, booted_at_us=at_us, **WORKED)

    @write
    def record_acknowledged(
        self, tx: Transaction, node_id: str, effect: EffectKind, at_us: int, claim: str = ""
    ) -> None:
        """Record that a command or a terminate was acknowledged: START (with its claim), RELEASE,
        DRAIN, SAVE or TERMINATE."""
        if _touched(tx, node_id, at_us) is not None:
            change(tx.conn, node_id, **acknowledged(effect, at_us, claim))

    @write
    def record_credential_lease(
        self, tx: Transaction, node_id: str, at_us: int, until_us: int
    ) -> None:
        """Record that the node holds credentials of its job's store that are valid until
        `until_us`.

        The time never decreases, so that a delayed caller does not shorten a newer lease.
        """
        earlier = (_nodes.id == node_id) & (_nodes.lent_until_us < until_us)
        changed = {"lent_at_us": at_us, "lent_until_us": until_us}
        tx.conn.execute(update(schema.nodes).where(earlier).values(**changed))

    @write_urgent
    def record_link(self, tx: Transaction, node_id: str, down_at_us: int) -> None:
        """Record that the SSH link to a node is down since `down_at_us`, or up again (0).

        The first loss counts until the link is up again.
        """
        where = _nodes.id == node_id
        row = tx.conn.execute(select(_nodes.link_down_at_us).where(where)).one_or_none()
        if row is None or (row.link_down_at_us > 0) == (down_at_us > 0):
            return
        if _touched(tx, node_id, down_at_us) is not None:
            change(tx.conn, node_id, link_down_at_us=down_at_us)

    @write
    def mark_silent_due(self, tx: Transaction, before_us: int) -> None:
        """Make jobs due if a booted node has neither booted nor sent a message since `before_us`.

        Nodes that exited, or are terminating or gone, do not count.
        """
        silent = tx.conn.execute(_SILENT, {"before": before_us}).scalars()
        tx.touch(dict.fromkeys(silent, before_us))

    @read_one
    def of_job(self, conn: Connection, job_id: str) -> list[Node]:
        """All nodes a job ever had, oldest first."""
        return read_nodes(conn, _OF_JOB, {"job": job_id})

    @read_one
    def active(self, conn: Connection) -> list[Node]:
        """Nodes of all jobs that are not gone."""
        return read_nodes(conn, _ACTIVE)

    @read_one
    def of_provider(self, conn: Connection, provider: str, limit: int) -> list[Node]:
        """The newest `limit` machines of a provider, gone ones too, oldest first."""
        newest = (
            select(_nodes.id)
            .where(_nodes.provider == provider)
            .order_by(_nodes.requested_at_us.desc(), _nodes.id.desc())
            .limit(limit)
        )
        ids = list(conn.execute(newest).scalars())
        return read_nodes(conn, _SOME, {"nodes": ids}) if ids else []

    @read_one
    def booted(self, conn: Connection) -> dict[str, NodeState]:
        """States by id of nodes whose agent was started, that are not gone and whose disk is not
        being cleaned for an image. Costs a tenth of `active`."""
        return {node_id: NodeState(state) for node_id, state in conn.execute(_BOOTED)}

    @read_one
    def find(self, conn: Connection, node_ids: Sequence[str]) -> list[Node]:
        """Those of these nodes that exist, oldest first."""
        ids = list(dict.fromkeys(node_ids))
        nodes: list[Node] = []
        for at in range(0, len(ids), _MANY):
            nodes += read_nodes(conn, _SOME, {"nodes": ids[at : at + _MANY]})
        return sorted(nodes, key=lambda node: (node.requested_at_us, node.id))

    @write
    def record_renewed(self, tx: Transaction, node_id: str, until_us: int) -> None:
        """Record that the cloud moved the node's expiry to `until_us`. Makes no job due."""
        conn = tx.conn
        earlier = (_nodes.id == node_id) & (_nodes.renewed_until_us < until_us)
        conn.execute(update(schema.nodes).where(earlier).values(renewed_until_us=until_us))

    @write_urgent
    def record_heartbeats(self, tx: Transaction, times_us: Mapping[str, int]) -> None:
        """Record heartbeats: node id -> time. A job becomes due only if a link was down."""
        if not times_us:
            return
        back = {row.id: row.job_id for row in tx.conn.execute(_DOWN) if row.id in times_us}
        tx.touch({job_id: times_us[node_id] for node_id, job_id in back.items()})
        tx.conn.execute(_HEARD, [{"node": node, "at": times_us[node]} for node in sorted(times_us)])


def _touched(tx: Transaction, node_id: str, at_us: int) -> Row[Any] | None:
    """The node, its job's row locked and made due; None for an unknown id."""
    where = _nodes.id == node_id
    job_id = tx.conn.execute(select(_nodes.job_id).where(where)).scalar_one_or_none()
    if job_id is None:
        return None
    tx.touch({job_id: at_us})
    return tx.conn.execute(select(schema.nodes).where(where)).one()


def change(conn: Connection, node_id: str, **values: object) -> None:
    """Set observation columns."""
    conn.execute(update(schema.nodes).where(_nodes.id == node_id).values(**values))


def adopt(tx: Transaction, row: Row[Any], instance_id: str, at_us: int) -> None:
    """The node `row` has an instance, however that became known."""
    change(tx.conn, row.id, **launched(row, instance_id, at_us))
    if starts_to_cost(row):
        ledger.confirm(tx, row.id, at_us)


def launched(row: NodeRow, instance_id: str, at_us: int) -> dict[str, object]:
    """The columns of a node that has an instance: it exists, whatever was concluded before.

    If a listing reported it first, the recorded failures are those of a later call.
    """
    known = {"instance_id": instance_id, "launched_at_us": row.launched_at_us or at_us}
    again = {"launch_error": "", "launch_error_code": "", "gone_at_us": 0}
    return {**known, **again, **({} if row.instance_id else WORKED)}


def starts_to_cost(row: NodeRow) -> bool:
    """Return whether the segment of a node opens. A node that is gone counts only if its instance
    was unknown: others have ended."""
    return bool(row.state != NodeState.GONE.value or not row.instance_id)


def refused(row: NodeRow, code: str, text: str, at_us: int) -> dict[str, object]:
    """The columns of a node whose launch was refused.

    Only the answer to the first call is final. Otherwise an earlier call whose answer was lost may
    have created an instance, and a cloud may check credentials and quota before the token.
    """
    values: dict[str, object] = {"launch_error": text or code, "launch_error_code": code}
    if row.effect_armed_at_us in (0, row.requested_at_us):
        values["gone_at_us"] = at_us
    return values


def acknowledged(effect: EffectKind, at_us: int, claim: str) -> dict[str, object]:
    """The columns of a node that acknowledged `effect`."""
    if effect is EffectKind.START:
        return {"started_at_us": at_us, "started_claim": claim, **WORKED}
    if effect in _TOLD:
        return {_TOLD[effect]: at_us, **WORKED}
    raise ValueError(f"{effect.value} is not an order to a node")
