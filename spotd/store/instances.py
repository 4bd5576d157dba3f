"""A cloud's complete listing of instances, compared with the nodes on record there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, select, update

import providers.base
from providers.base import (
    Instance,
    InstanceState,
    Notice,
    ProviderError,
    Scope,
    UnpreparedError,
)
from spotd.domain.node import EffectKind
from spotd.domain.units import S
from spotd.planner.offers.cooldowns import OWN_IMAGE, refusal_code
from spotd.store import ledger, market, nodes, notices, schema
from spotd.store.codec import decode_spec
from spotd.store.rows import NOT_GONE, NodeRow
from spotd.store.session import Repository, write
from spotd.store.transaction import Transaction

# A machine may be missing from listings for this long after its creation was confirmed, however
# soon its cloud says that it shows one: also from the next listing after one that had it.
FRESH_S = 10.0
# Clouds answer from copies that lag, and two answers in a row may come from the same one. So a
# machine that we did not end, and that does not speak, is gone when listings have lacked it for
# this long, and one followed the other within it: so there are three of them, at the least. What
# lies further apart says nothing of the time between, in which nobody asked. A cloud that says that
# it has ended is believed at once.
ABSENT_S = 60.0
_jobs, _nodes = schema.jobs.c, schema.nodes.c
ENDED = frozenset({InstanceState.TERMINATED, InstanceState.FAILED})
_SAID = ("cloud_state", "host", "private_host", "port", "ssh_user", "host_public_key")
_SEEN_COLUMNS = (*_SAID, "surveyed_at_us", "seen_at_us", "missed_at_us", "gone_at_us")
_SEEN = (
    update(schema.nodes)
    .where(_nodes.id == bindparam("node"))
    .values({name: bindparam(name) for name in _SEEN_COLUMNS})
)
_OURS = (_nodes.provider == bindparam("provider")) & NOT_GONE
_COMPARED: Select[Any] = (
    select(
        *(_nodes[name] for name in _SEEN_COLUMNS),
        _nodes.id,
        _nodes.job_id,
        _nodes.token,
        _nodes.instance_id,
        _nodes.launched_at_us,
        _nodes.booted_at_us,
        _nodes.link_down_at_us,
        _nodes.terminated_at_us,
        _nodes.effect,
        _nodes.effect_armed_at_us,
    )
    .where(_OURS)
    .order_by(_nodes.id)
)
# In the order in which everybody does: what follows writes some of them first.
_LOCK = select(_nodes.id).where(_OURS).order_by(_nodes.id).with_for_update(key_share=True)
_CHANGED = (
    select(schema.nodes)
    .where(_OURS, _nodes.id.in_(bindparam("changed", expanding=True)))
    .order_by(_nodes.id)
)
_QUIET = 500  # nodes in one statement
_ASKED_AT = {
    column: update(schema.nodes)
    .where(_nodes[column] < bindparam("asked"))
    .where(_nodes.id.in_(bindparam("quiet", expanding=True)))
    .values({column: bindparam("asked")})
    for column in ("seen_at_us", "surveyed_at_us")
}
_ASKED = frozenset({EffectKind.SURVEY.value, EffectKind.RESOLVE.value})


@dataclass(frozen=True)
class Listing:
    """One listing of a cloud, requested at `asked_at_us`, recorded at `at_us`."""

    provider: str
    instances: Sequence[Instance]
    asked_at_us: int
    at_us: int
    visibility_s: float

    def lacks(self, row: NodeRow) -> bool:
        """Whether it should show the machine if that is alive: it was requested after the machine
        was known to exist, and late enough for a new one."""
        if not row.instance_id:
            return False
        shown_us = row.launched_at_us + int(max(FRESH_S, self.visibility_s) * S)
        return bool(self.asked_at_us > max(shown_us, row.seen_at_us))

    def missed_since_us(self, row: NodeRow) -> int:
        """Since when earlier listings have lacked the machine; 0 if one showed it, or if none was
        requested for ABSENT_S."""
        paused = self.asked_at_us - row.surveyed_at_us >= ABSENT_S * S
        return 0 if paused else row.missed_at_us

    def proves_absent(self, row: NodeRow) -> bool:
        """Whether the missing machine counts as gone.

        Listings may be incomplete: a machine that spotd did not end is gone after listings lacked
        it for ABSENT_S, and never while its link is up.
        """
        if not self.lacks(row):
            return False
        if row.terminated_at_us:
            return True
        if row.booted_at_us and not row.link_down_at_us:
            return False
        since_us = self.missed_since_us(row)
        return bool(since_us and self.asked_at_us - since_us >= ABSENT_S * S)


class InstanceRepository(Repository):
    """Listings and notices of clouds."""

    @write
    def record_notices(
        self, tx: Transaction, provider: str, observed: Sequence[Notice], at_us: int
    ) -> None:
        """Record notices from the cloud's queue, by instance id; unknown machines are ignored.

        A notice that the node reported as well is one row.
        """
        ids = {notice.instance_id for notice in observed if notice.instance_id}
        ours = (_nodes.provider == provider) & _nodes.instance_id.in_(sorted(ids))
        # Of a machine that has served several attempts, the newest row is the one that is not over.
        query = select(schema.nodes).where(ours).order_by(_nodes.generation, _nodes.id)
        rows = {row.instance_id: row for row in tx.conn.execute(query)}
        known = [(rows[n.instance_id], n) for n in observed if n.instance_id in rows]
        tx.touch({row.job_id: at_us for row, _ in known})
        notices.record(tx, [notices.from_cloud(row, notice, at_us) for row, notice in known])

    def record_listing(
        self,
        provider: str,
        instances: Sequence[Instance],
        asked_at_us: int,
        at_us: int,
        visibility_s: float = 0.0,
    ) -> list[Instance]:
        """Compare a complete listing of a cloud, requested at `asked_at_us`, with the provider's
        nodes.

        It is no evidence about nodes launched later, or less than `visibility_s` before, nor about
        a missing machine whose link is up, unless spotd ended it. Returns the orphans: instances
        with an unknown token, or of a node that is gone. An unchanged machine needs no statement.
        """
        listing = Listing(provider, instances, asked_at_us, at_us, visibility_s)
        return self.session.write(lambda tx: _record_listing(tx, listing))


def _record_listing(tx: Transaction, listing: Listing) -> list[Instance]:
    """Record a listing. An unchanged machine costs no statement of its own."""
    ours = {"provider": listing.provider}
    before = tx.conn.execute(_COMPARED, ours).all()
    by_node = matched(before, listing.instances)
    changed = {row.id: row.job_id for row in before if tells(row, by_node.get(row.id), listing)}
    tx.touch(dict.fromkeys(changed.values(), listing.at_us))
    if before:
        tx.conn.execute(_LOCK, ours).all()
    seen = []
    # Looked at twice: to know what to lock, and under those locks.
    for row in tx.conn.execute(_CHANGED, {**ours, "changed": sorted(changed)}) if changed else ():
        instance = by_node.get(row.id)
        if outdated(row, instance, listing):
            continue
        if instance is None:
            seen.append(_unlisted(tx, row, listing))
        elif came_to_nothing(row, instance):
            _failed(tx, row, instance, listing)
        else:
            seen.append(_listed(tx, row, instance, listing))
    if seen:
        tx.conn.execute(_SEEN, seen)
    quiet = [row.id for row in before if row.id not in changed]
    shown = [name for name in quiet if name in by_node]
    seen_now = [name for name in shown if by_node[name].state is not InstanceState.FAILED]
    _note_time(tx.conn, seen_now, listing, "seen_at_us")
    _note_time(tx.conn, quiet, listing, "surveyed_at_us")
    strays = unwanted(listing, by_node)
    ledger.count_strays(tx, listing.provider, strays, listing.asked_at_us, listing.at_us)
    return strays


def _note_time(conn: Connection, ids: Sequence[str], listing: Listing, column: str) -> None:
    """Record that the cloud was polled and reported nothing new about these nodes."""
    for at in range(0, len(ids), _QUIET):
        some = ids[at : at + _QUIET]
        conn.execute(_ASKED_AT[column], {"asked": listing.asked_at_us, "quiet": some})


def unwanted(listing: Listing, by_node: Mapping[str, Instance]) -> list[Instance]:
    """Return live instances that belong to none of the nodes in `by_node`."""
    wanted = {instance.instance_id for instance in by_node.values()}
    return [i for i in listing.instances if i.instance_id not in wanted and i.state not in ENDED]


def matched(rows: Sequence[NodeRow], instances: Sequence[Instance]) -> dict[str, Instance]:
    """Return node id -> its instance, by instance id, otherwise by token.

    If a cloud broke its promise and has several for one token, the running one is the node's; the
    others are orphans.
    """
    by_id = {row.instance_id: row.id for row in rows if row.instance_id}
    by_token = {row.token: row.id for row in rows if not row.instance_id}
    by_node: dict[str, Instance] = {}
    for instance in sorted(instances, key=lambda i: (i.state in ENDED, i.instance_id)):
        node_id = by_id.get(instance.instance_id) or by_token.get(instance.token)
        if node_id is not None:
            by_node.setdefault(node_id, instance)
    return by_node


def came_to_nothing(row: NodeRow, instance: Instance) -> bool:
    """The cloud accepted the create and could not fulfil it."""
    return instance.state is InstanceState.FAILED and not row.booted_at_us


def outdated(row: NodeRow, instance: Instance | None, listing: Listing) -> bool:
    """Whether a newer listing has judged the node: another daemon may have paused with its answer.

    That an instance exists at all is news nevertheless.
    """
    return bool(row.surveyed_at_us > listing.asked_at_us and (row.instance_id or instance is None))


def tells(row: NodeRow, instance: Instance | None, listing: Listing) -> bool:
    """Whether the listing has news about a node, or answers a request about it."""
    if outdated(row, instance, listing):
        return False
    if row.effect in _ASKED and row.surveyed_at_us < row.effect_armed_at_us <= listing.asked_at_us:
        return True
    if instance is None:
        if listing.lacks(row) and not listing.missed_since_us(row):
            return True
        return listing.proves_absent(row) and not (row.gone_at_us and row.cloud_state == "absent")
    if came_to_nothing(row, instance):
        return not (row.gone_at_us and row.cloud_state == instance.state.value)
    if not row.seen_at_us or row.missed_at_us or row.instance_id != instance.instance_id:
        return True
    gone = instance.state in ENDED
    return gone != bool(row.gone_at_us) or _said(row, instance) != {
        n: getattr(row, n) for n in _SAID
    }


def _said(row: NodeRow, instance: Instance) -> dict[str, Any]:
    """The columns that describe the instance now.

    An ended one has no address: the last one stays. Its host key is the first one reported: whoever
    is on the machine later may be able to report another one.
    """
    return {
        "cloud_state": instance.state.value,
        "host": instance.host or row.host,
        "private_host": instance.private_host or row.private_host,
        "port": instance.port if instance.host else row.port,
        "ssh_user": instance.ssh_user or row.ssh_user,
        "host_public_key": row.host_public_key or instance.host_public_key,
    }


def unlisted(row: NodeRow, listing: Listing) -> dict[str, Any]:
    """The columns of a node that is not listed."""
    seen = {name: getattr(row, name) for name in _SEEN_COLUMNS}
    seen["surveyed_at_us"] = max(row.surveyed_at_us, listing.asked_at_us)
    if listing.lacks(row):
        seen["missed_at_us"] = listing.missed_since_us(row) or listing.asked_at_us
    if listing.proves_absent(row):
        seen |= {"cloud_state": "absent", "gone_at_us": row.gone_at_us or listing.at_us}
    return seen


def listed(row: NodeRow, instance: Instance, listing: Listing) -> dict[str, Any]:
    """The columns of a node whose instance is listed."""
    return {
        **_said(row, instance),
        "surveyed_at_us": max(row.surveyed_at_us, listing.asked_at_us),
        "seen_at_us": max(row.seen_at_us, listing.asked_at_us),
        "missed_at_us": 0,
        "gone_at_us": (row.gone_at_us or listing.at_us) if instance.state in ENDED else 0,
    }


def born_us(row: NodeRow, instance: Instance) -> int:
    """Since when the instance exists; 0 if unknown.

    A clock behind the daemon's, or one of whole seconds, may name a time before the request.
    """
    return max(instance.launched_at_us, int(row.requested_at_us))


def failed(row: NodeRow, instance: Instance, listing: Listing, code: str) -> dict[str, Any]:
    """Return the columns of a node whose launch was refused late."""
    return {
        "cloud_state": instance.state.value,
        "surveyed_at_us": max(row.surveyed_at_us, listing.asked_at_us),
        "gone_at_us": row.gone_at_us or listing.at_us,
        "launch_error": row.launch_error or instance.error or code,
        "launch_error_code": row.launch_error_code or code,
    }


def failure_code(instance: Instance, image_id: str) -> str:
    """The code that a failed create of a job with that image is recorded under."""
    return refusal_code(instance.error_code or "CapacityError", image_id)


def _unlisted(tx: Transaction, row: Row[Any], listing: Listing) -> dict[str, Any]:
    if listing.proves_absent(row):
        ledger.end(tx.conn, row.id, row.gone_at_us or listing.at_us)
    return {"node": row.id, **unlisted(row, listing)}


def _listed(tx: Transaction, row: Row[Any], instance: Instance, listing: Listing) -> dict[str, Any]:
    at_us = listing.at_us
    if not row.instance_id:
        nodes.adopt(tx, row, instance.instance_id, at_us)
    if not row.seen_at_us:
        ledger.backdate(tx.conn, row.id, born_us(row, instance))
    if instance.state in ENDED:
        ledger.end(tx.conn, row.id, row.gone_at_us or at_us)
    elif row.gone_at_us and row.instance_id:
        ledger.confirm(tx, row.id, at_us)  # a listing had missed it, and it lives
    return {"node": row.id, **listed(row, instance, listing)}


def _failed(tx: Transaction, row: Row[Any], instance: Instance, listing: Listing) -> None:
    spec = tx.conn.execute(select(_jobs.spec).where(_jobs.id == row.job_id)).scalar_one()
    code = failure_code(instance, decode_spec(spec).resources.image_id)
    nodes.change(tx.conn, row.id, **failed(row, instance, listing, code))
    if not row.gone_at_us:
        ledger.void(tx.conn, row.id, listing.at_us)
        market.refuse(tx, row.id, row.offer_key, code, scope_of(code), listing.at_us)


def scope_of(code: str) -> Scope:
    """The part of the market that an error of that class rules out."""
    kind = UnpreparedError if code == OWN_IMAGE else getattr(providers.base, code, None)
    if isinstance(kind, type) and issubclass(kind, ProviderError):
        return kind.scope
    return Scope.OFFER
