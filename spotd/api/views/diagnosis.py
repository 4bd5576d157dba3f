"""Recent diagnoses of a job's training, and how well its machines are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotd.api.views.resources import iso
from spotd.domain.health import ADVICE, NOT_RESUMED, USAGE, Utilization, follows, use_of
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.money.units import usd
from spotd.store.events import EventRow
from spotd.store.interface import Store

LATELY_US = 24 * 3600 * S
USE_US = 15 * 60 * S  # the window of HLT-11


def diagnoses(store: Store, job: Job, now_us: int) -> list[dict[str, Any]]:
    """Return the newest diagnosis of each kind within a day, newest first.

    The diagnosis that a program has not resumed is left out once it has. Each has the observation,
    spotd's reaction, advice for the user, and the stacks that were dumped.
    """
    rows = store.events.of_kinds(job.id, tuple(ADVICE), now_us - LATELY_US)
    counts: dict[str, int] = {}
    newest: dict[str, EventRow] = {}
    for row in rows:
        counts[row.event.kind] = counts.get(row.event.kind, 0) + 1
        newest[row.event.kind] = row
    if (late := newest.get(NOT_RESUMED)) and late.event.data.get("opened"):
        del newest[NOT_RESUMED]
    return [
        {
            "kind": row.event.kind,
            "title": ADVICE[row.event.kind].title,
            "at": iso(row.at_us),
            "node_id": row.event.node_id,
            "times": counts[row.event.kind],
            "seen": row.event.text,
            "does": follows(row.event.kind, row.event.data, job.spec.resources.num_nodes),
            "attempt": ADVICE[row.event.kind].attempt,
            "stacks": row.event.data.get("stacks", []),
        }
        for row in sorted(newest.values(), key=lambda row: -row.id)
    ]


def recent_use(store: Store, job: Job, now_us: int) -> dict[str, Any] | None:
    """Return how well the machines were used in the last 15 minutes; None: not measured."""
    return use_since(store, job, now_us - USE_US)


def total_use(store: Store, job: Job) -> dict[str, Any] | None:
    """Return the utilization for as long as the job's record goes back."""
    return use_since(store, job, 0)


def use_since(store: Store, job: Job, since_us: int) -> dict[str, Any] | None:
    """Return the utilization since a point in time; None: not measured."""
    windows = store.events.of_kinds(job.id, (USAGE,), since_us)
    utilization = use_of([row.event.data for row in windows])
    if utilization is None:
        return None
    return {
        **_shares(utilization),
        **idle_costs(windows, {node.id: node for node in store.nodes.of_job(job.id)}),
    }


def _shares(utilization: Utilization) -> dict[str, Any]:
    return {
        "measured_hours": round(utilization.seconds / 3600, 6),
        "gpu": _rounded(utilization.gpu),
        "data": _rounded(utilization.data),
        "save": _rounded(utilization.save),
        "cause": utilization.cause,
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def idle_costs(windows: Sequence[EventRow], nodes: Mapping[str, Node]) -> dict[str, Any]:
    """Return the dollars that were paid while GPUs did nothing.

    `data_usd` and `save_usd` are the parts in which training waited for data and for checkpoints.
    Counts only the machines that report, at their present price. None: not measured.
    """
    sums: dict[str, float] = {}
    for row in windows:
        node = nodes.get(row.event.node_id)
        if node is None:
            continue
        data = row.event.data
        microusd_per_s = node.offer.price_microusd_per_h / 3600
        window_s = _number(data, "window_s") or 0.0
        busy = _number(data, "gpu")
        idle_s = None if busy is None else (1 - min(busy, 1.0)) * window_s
        waits = {"idle_usd": idle_s}
        waits |= {f"{part}_usd": _number(data, f"{part}_s") for part in ("data", "save")}
        for name, seconds in waits.items():
            if seconds is not None:
                sums[name] = sums.get(name, 0.0) + seconds * microusd_per_s
    names = ("idle_usd", "data_usd", "save_usd")
    return {name: usd(round(sums[name])) if name in sums else None for name in names}


def _number(data: Mapping[str, object], name: str) -> float | None:
    value = data.get(name)
    return float(value) if isinstance(value, int | float) else None
