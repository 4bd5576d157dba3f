"""The route for a right-sizing review: the measurements of jobs on their machines, and their
cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from spotd.api.request.request import ApiRequest
from spotd.api.routes.rightsize import measured_of
from spotd.api.views.diagnosis import use_since
from spotd.api.views.resources import iso
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.units import US_PER_H, S
from spotd.money.units import usd
from spotd.sizing.sizes import Measured
from spotd.sizing.task import TaskError, task_of
from spotd.spec.model import read_model_block
from spotd.store.ledger import SegmentRow, stretch_of

QUARTER_S = 90 * 86_400
MOST_S = 3 * 366 * 86_400
MOST_JOBS = 200


def review(call: ApiRequest) -> dict[str, Any]:
    """Review the newest job of each name that had GPU machines in the last `since_s` seconds.

    For each: its cost, the utilization of its machines, and its measurements if its file has
    `spotd.model`. The most expensive come first; beyond MOST_JOBS they are only counted.
    """
    store, now_us = call.context.store, call.now_us
    since_us = now_us - call.number("since_s", QUARTER_S, 1, MOST_S) * S
    rows: dict[str, list[SegmentRow]] = {}
    for row in store.ledger.segments():
        if row.state != "void" and (row.end_us or now_us) > since_us:
            rows.setdefault(row.job_id, []).append(row)
    newest: dict[str, Job] = {}
    for job in store.jobs.rows():
        other = newest.get(job.name)
        if job.id in rows and (other is None or other.created_at_us < job.created_at_us):
            newest[job.name] = job
    items = []
    for job in newest.values():
        nodes = [node for node in store.nodes.of_job(job.id) if node.offer.accelerator_count]
        if nodes:
            items.append(_item(call, job, nodes, rows[job.id], since_us))
    items.sort(key=lambda item: (-item["usd"], item["job"]))
    omitted = max(len(items) - MOST_JOBS, 0)
    return {
        "kind": "Review",
        "since": iso(since_us),
        "items": items[:MOST_JOBS],
        "left_out": omitted,
    }


def _item(
    call: ApiRequest, job: Job, nodes: Sequence[Node], rows: Sequence[SegmentRow], since_us: int
) -> dict[str, Any]:
    store, now_us = call.context.store, call.now_us
    paid, hours = 0, 0.0
    for row in rows:
        stretch = stretch_of(row, now_us)
        duration_h = (stretch.end_us - max(stretch.start_us, since_us)) / US_PER_H
        hours += duration_h
        paid += 0 if stretch.prepaid else round(row.rate_microusd_per_h * duration_h)
    model_fields = read_model_block(store.jobs.spec_yaml(job.id))
    try:
        measured = measured_of(store, job, task_of(model_fields)) if model_fields else None
    except TaskError:  # from a spotd version that knew other models
        model_fields, measured = {}, None
    last_offer = _measured_on(nodes, measured, job.spec.resources.num_nodes).offer
    return {
        "job": job.name,
        "job_id": job.id,
        "node_hours": round(hours, 6),
        "usd": usd(paid),
        "num_nodes": job.spec.resources.num_nodes,
        "accelerator": last_offer.accelerator,
        "accelerator_count": last_offer.accelerator_count,
        "instance_type": last_offer.instance_type,
        "interconnect": last_offer.interconnect,
        "capacity_type": last_offer.capacity_type.value,
        "price_usd_per_h": usd(last_offer.price_microusd_per_h),
        "use": use_since(store, job, since_us),
        "model": model_fields or None,
        "measured": asdict(measured) if measured else None,
    }


def _measured_on(nodes: Sequence[Node], measured: Measured | None, num_nodes: int) -> Node:
    """Return the newest machine of the kind that was measured, else the newest machine."""
    if measured is not None:
        for node in reversed(nodes):
            gpus = node.offer.accelerator_count * num_nodes
            if (node.offer.accelerator, gpus) == (measured.accelerator, measured.gpus):
                return node
    return nodes[-1]
