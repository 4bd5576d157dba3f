"""Database rows to domain values, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Connection, Row, Select, literal_column, select

from providers.base import NoticeKind, Offer
from spotd.domain.job import Desired, HeadSnapshot, Job
from spotd.domain.node import EffectKind, Node, NoticeRecord
from spotd.domain.plan import NODE_DECISIONS
from spotd.domain.states import LeaveReason, NodeState, Outcome
from spotd.planner.rules.gang_resize import KNOWN_OF_MACHINES
from spotd.store import schema
from spotd.store.codec import decode_offer, decode_spec, encode
from spotd.wire.parts import build, field_names, values_of
from spotd.wire.printed_steps import PrintedSteps, parse_printed_steps

_nodes, _notices = schema.nodes.c, schema.notices.c


class JobRow(Protocol):
    """A row of the table of jobs, or anything else with its columns as attributes."""

    def __getattr__(self, name: str) -> Any: ...


class NodeRow(Protocol):
    """A row of the table of nodes, or anything else with its columns as attributes."""

    def __getattr__(self, name: str) -> Any: ...


# The long texts (the YAML, the key) are read only when asked for.
JOB_COLUMNS = [
    column for column in schema.jobs.columns if column.name not in ("spec_yaml", "job_key")
]
# A field of a record, or of a part of it, has the name of its column. These are stored otherwise.
_ODD_JOB = frozenset({"spec", "desired", "outcome", "head"})
_PLAIN_JOB = tuple(name for name in field_names(Job) if name not in _ODD_JOB)
_ODD_NODE = frozenset(
    {"offer", "state", "leave_reason", "effect", "effect_failures", "effect_failed_at_us"}
    | {"notices", "printed_steps"}
)
_PLAIN_NODE = tuple(name for name in field_names(Node) if name not in _ODD_NODE)
NODE_BIRTH = (
    "id",
    "job_id",
    "generation",
    "rank",
    "candidate",
    "token",
    "requested_at_us",
    "expires_at_us",
    "image_id",
    "image_setup",
    "moved_at_us",
    "gang_size",
)
# What is known of a machine that goes on in another attempt; of any other, nothing is at its birth.
MACHINE = (*KNOWN_OF_MACHINES, "launched_at_us")
_DECIDED = tuple(sorted(NODE_DECISIONS))

# Spelled out as in the indexes that are made for them. With a parameter in its place, SQLite
# compiles a statement anew whenever it is executed, to see whether such an index would do.
ZERO: ColumnElement[int] = literal_column("0")
NOT_GONE = _nodes.state != literal_column(f"'{NodeState.GONE.value}'")


def job_of(row: Row[Any]) -> Job:
    """The job of a row with JOB_COLUMNS."""
    values = row._mapping  # noqa: SLF001 - the public name of a row's mapping
    decoded = {
        "spec": decode_spec(row.spec),
        "desired": Desired(row.desired),
        "outcome": _maybe(Outcome, row.outcome),
        "head": head_of(row),
    }
    return build(Job, {name: values[name] for name in _PLAIN_JOB} | decoded)


def head_of(row: Any) -> HeadSnapshot | None:
    """The head_* columns; None while no one has claimed HEAD."""
    if not row.head_seen_at_us:
        return None
    return HeadSnapshot(
        generation=row.head_generation,
        step=row.head_step,
        manifest=row.head_manifest,
        released=row.head_released,
        final=row.head_final,
        seen_at_us=row.head_seen_at_us,
        read_at_us=row.head_read_at_us,
    )


def head_columns(head: HeadSnapshot) -> dict[str, Any]:
    """The inverse of `head_of`."""
    return {f"head_{item.name}": getattr(head, item.name) for item in fields(head)}


def node_of(row: Row[Any], notices: Iterable[NoticeRecord] = ()) -> Node:
    """The node of a row with all columns of nodes."""
    values = row._mapping  # noqa: SLF001
    # Failures count for the armed effect only: another one starts afresh.
    counted = values["effect_failed_kind"] == values["effect"]
    decoded = {
        "offer": _offer_of(row),
        "state": NodeState(values["state"]),
        "leave_reason": _maybe(LeaveReason, values["leave_reason"]),
        "effect": _maybe(EffectKind, values["effect"]),
        "effect_failures": values["effect_failures"] if counted else 0,
        "effect_failed_at_us": values["effect_failed_at_us"] if counted else 0,
        "notices": tuple(notices),
        "printed_steps": printed_steps_of(values["printed_steps"]),
    }
    return build(Node, {name: values[name] for name in _PLAIN_NODE} | decoded)


def printed_steps_of(text: str) -> PrintedSteps:
    """The steps that a program printed; the column is empty if it printed none."""
    return parse_printed_steps(json.loads(text)) if text else {}


def _offer_of(row: Row[Any]) -> Offer:
    """The offer as it was requested, at today's price, which `ledger.reprice` keeps in a column."""
    offer = decode_offer(row.offer)
    if offer.price_microusd_per_h == row.rate_microusd_per_h:
        return offer
    return replace(offer, price_microusd_per_h=row.rate_microusd_per_h)


def _maybe(kind: Any, value: str | None) -> Any:
    return None if value is None else kind(value)


def node_birth(node: Node) -> dict[str, Any]:
    """The columns that a new node is inserted with; observations take their defaults."""
    return {
        **values_of(node, NODE_BIRTH),
        "offer": encode(node.offer),
        "offer_key": node.offer.key,
        "provider": node.offer.provider,
        "rate_microusd_per_h": node.offer.price_microusd_per_h,
        **node_decisions(node),
    }


def node_moved(node: Node) -> dict[str, Any]:
    """All columns of a machine's row in another attempt."""
    return {**node_birth(node), **values_of(node, MACHINE)}


def node_decisions(node: Node) -> dict[str, Any]:
    """All decision columns of a node."""
    return {name: _stored(value) for name, value in values_of(node, _DECIDED).items()}


def _stored(value: Any) -> Any:
    return getattr(value, "value", value)


_NOTICE_COLUMNS = [
    column.label(f"n_{column.name}")
    for column in schema.notices.columns
    if column.name not in ("node_id", "text")
]


def nodes_query(*conditions: Any) -> Select[Any]:
    """A query for the nodes that match; build it once if it is used often."""
    return (
        select(schema.nodes, *_NOTICE_COLUMNS)
        .join_from(schema.nodes, schema.notices, _notices.node_id == _nodes.id, isouter=True)
        .where(*conditions)
        .order_by(_nodes.requested_at_us, _nodes.id, _notices.heard_at_us, _notices.notice_id)
    )


def read_nodes(
    conn: Connection, query: Select[Any], values: Mapping[str, Any] | None = None
) -> list[Node]:
    """The nodes of a `nodes_query`, oldest first, each with its notices."""
    by_id: dict[str, tuple[Row[Any], list[NoticeRecord]]] = {}
    for row in conn.execute(query, values):
        _, notices = by_id.setdefault(row.id, (row, []))
        if row.n_notice_id is not None:
            notices.append(notice_of(row, "n_"))
    return [node_of(row, notices) for row, notices in by_id.values()]


def notice_of(row: Row[Any], prefix: str = "") -> NoticeRecord:
    """The notice of a row; its columns' names start with `prefix`."""
    values = {name: getattr(row, prefix + name) for name in _NOTICE}
    return NoticeRecord(**{**values, "kind": NoticeKind(values["kind"])})


_NOTICE = tuple(item.name for item in fields(NoticeRecord))


def numbers(text: str) -> tuple[float, ...]:
    """A JSON list of numbers."""
    return tuple(float(item) for item in json.loads(text))
