"""What was found wrong with a job's training lately, and how well its machines are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotd.api.views.resources import iso, usd
from spotd.domain.health import ADVICE, USAGE, Utilization, follows, use_of
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.store.interface import EventRow, Store

LATELY_US = 24 * 3600 * S
USE_US = 15 * 60 * S  # what HLT-11 looks at


def verdicts(store: Store, job: Job, now_us: int) -> list[dict[str, Any]]:
    """The newest of each kind within a day, newest first: what was seen, what spotd does about it,
    what a person can try; and the stacks that were taken."""
    rows = store.events_of(job.id, tuple(ADVICE), now_us - LATELY_US)
    counts: dict[str, int] = {}
    newest: dict[str, EventRow] = {}
    for row in rows:
        counts[row.event.kind] = counts.get(row.event.kind, 0) + 1
        newest[row.event.kind] = row
    return [
        {
            "kind": row.event.kind,
            "title": ADVICE[row.event.kind].title,
            "at": iso(row.at_us),
            "node_id": row.event.node_id,
            "times": counts[row.event.kind],
            "seen": row.event.text,
            "does": follows(row.event.kind, row.event.data, job.spec.num_nodes),
            "attempt": ADVICE[row.event.kind].attempt,
            "stacks": row.event.data.get("stacks", []),
        }
        for row in sorted(newest.values(), key=lambda one: -one.id)
    ]


def use_lately(store: Store, job: Job, now_us: int) -> dict[str, Any] | None:
    """How well the machines were used in the last quarter of an hour; None: nobody measured it."""
    return use_since(store, job, now_us - USE_US)


def use_in_all(store: Store, job: Job) -> dict[str, Any] | None:
    """The same, for as long as the job's record goes back."""
    return use_since(store, job, 0)


def use_since(store: Store, job: Job, since_us: int) -> dict[str, Any] | None:
    """The same since then."""
    windows = store.events_of(job.id, (USAGE,), since_us)
    used = use_of([row.event.data for row in windows])
    if used is None:
        return None
    return {**_shares(used), **idle(windows, {node.id: node for node in store.job_nodes(job.id)})}


def _shares(used: Utilization) -> dict[str, Any]:
    return {
        "measured_hours": round(used.seconds / 3600, 6),
        "gpu": _rounded(used.gpu),
        "data": _rounded(used.data),
        "save": _rounded(used.save),
        "cause": used.cause,
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def idle(windows: Sequence[EventRow], nodes: Mapping[str, Node]) -> dict[str, Any]:
    """Dollars of the windows in which GPUs did nothing, and of those that training waited for data
    and for checkpoints, which are part of the former. Of the machines that report alone, at their
    price of today; None: not measured."""
    sums: dict[str, float] = {}
    for row in windows:
        node = nodes.get(row.event.node_id)
        if node is None:
            continue
        data = row.event.data
        per_s = node.offer.price_microusd_per_h / 3600
        window_s = _number(data, "window_s") or 0.0
        busy = _number(data, "gpu")
        idle_s = None if busy is None else (1 - min(busy, 1.0)) * window_s
        waits = {"idle_usd": idle_s}
        waits |= {f"{part}_usd": _number(data, f"{part}_s") for part in ("data", "save")}
        for name, seconds in waits.items():
            if seconds is not None:
                sums[name] = sums.get(name, 0.0) + seconds * per_s
    names = ("idle_usd", "data_usd", "save_usd")
    return {name: usd(round(sums[name])) if name in sums else None for name in names}


def _number(data: Mapping[str, object], name: str) -> float | None:
    value = data.get(name)
    return float(value) if isinstance(value, int | float) else None
