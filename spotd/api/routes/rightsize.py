"""What a job's model takes: memory on each offer, time and cost as foretold or measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spotd.api.request.request import ApiRequest, bad_input
from spotd.domain.job import Job
from spotd.planner.core.slow_detection import WARM_UP_US
from spotd.sizing.sizes import LIMITS, Measured, on_offer, with_hardware
from spotd.sizing.task import Task, task_of
from spotd.sizing.throughput import MEASURED_STEPS
from spotd.spec.model import model_words
from spotd.store.interface import ProgressRow, Store


def job_sizing(call: ApiRequest) -> dict[str, Any]:
    """The words of `spotd.model` of a job, and what was measured of it; `measured` is null until
    it has trained MEASURED_STEPS steps on one kind of machine, warm."""
    job = call.job()
    words = model_words(call.backing.store.spec_yaml(job.id))
    if not words:
        raise bad_input(
            f"the job file of {job.name} has no spotd.model",
            "spotctl rightsize FILE, or --model NAME, says it for one that has",
        )
    measured = measured_of(call.backing.store, job, task_of(words))
    return {
        "kind": "JobSizing",
        "job": job.name,
        "model": words,
        "num_nodes": job.spec.num_nodes,
        "measured": asdict(measured) if measured else None,
        "measured_steps_needed": MEASURED_STEPS,
    }


def measured_of(store: Store, job: Job, task: Task) -> Measured | None:
    """By the newest attempt that trained long enough, without its first minutes. A program that
    reports no tokens is counted by its steps."""
    nodes = {
        node.generation: node
        for node in store.job_nodes(job.id)
        if node.chosen and not node.rank and node.offer.accelerator_count
    }
    attempts: dict[int, list[ProgressRow]] = {}
    for row in store.progress(job.id):
        attempts.setdefault(row.generation, []).append(row)
    for generation in sorted(nodes.keys() & attempts.keys(), reverse=True):
        rows, offer = attempts[generation], nodes[generation].offer
        warm_us = min(row.first_at_us for row in rows) + WARM_UP_US
        warm = [row for row in rows if row.first_at_us >= warm_us and row.busy_s > 0]
        steps = sum(row.to_step - row.from_step + 1 for row in warm)
        if steps < MEASURED_STEPS:
            continue
        gpus = offer.accelerator_count * job.spec.num_nodes
        tokens = float(sum(row.tokens for row in warm))
        if not tokens:
            each = task.on(gpus)
            replicas = each.run.replicas * each.run.context
            tokens = steps * each.trained_tokens * replicas * task.run.accumulation
        rate = tokens / sum(row.busy_s for row in warm)
        return Measured(rate, steps, offer.accelerator, gpus)
    return None


def with_sizes(call: ApiRequest, text: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """A plan, with `size` for each offer where the job file says what its model is. The last job of
    that name has measured for this one."""
    words = model_words(text)
    if not words:
        return dict(data)
    task = task_of(words)
    before = call.backing.store.find_job(data["job"])
    measured = measured_of(call.backing.store, before, task) if before else None
    offers = [
        {**row, "size": on_offer(task, row, data["num_nodes"], measured)} for row in data["offers"]
    ]
    return {
        **data,
        "offers": with_hardware(offers),
        "model": {
            "name": task.shape.name,
            "parameters": task.shape.parameters,
            "measured": asdict(measured) if measured else None,
            "limits": LIMITS,
        },
    }
