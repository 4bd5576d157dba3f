"""The sizing of a job's model: memory on each offer, and time and cost, predicted or measured."""

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
from spotd.spec.model import read_model_block
from spotd.store.interface import Store
from spotd.store.progress import ProgressRow


def job_sizing(call: ApiRequest) -> dict[str, Any]:
    """The keys of `spotd.model` of a job, and its measurements; `measured` is null until it has
    trained MEASURED_STEPS steps on one kind of machine after the warm-up."""
    job = call.job()
    model_fields = read_model_block(call.context.store.jobs.spec_yaml(job.id))
    if not model_fields:
        raise bad_input(
            f"the job file of {job.name} has no spotd.model",
            "add spotd.model to a file and run spotctl rightsize FILE, or give --model NAME",
        )
    measured = measured_of(call.context.store, job, task_of(model_fields))
    return {
        "kind": "JobSizing",
        "job": job.name,
        "model": model_fields,
        "num_nodes": job.spec.resources.num_nodes,
        "measured": asdict(measured) if measured else None,
        "measured_steps_needed": MEASURED_STEPS,
    }


def measured_of(store: Store, job: Job, task: Task) -> Measured | None:
    """Return the measured throughput of the newest attempt that trained long enough.

    Excludes its first minutes. When the program reports no tokens, they are computed from its
    steps. None where no attempt trained long enough.
    """
    nodes = {
        node.generation: node
        for node in store.nodes.of_job(job.id)
        if node.chosen and not node.rank and node.offer.accelerator_count
    }
    attempts: dict[int, list[ProgressRow]] = {}
    for row in store.progress.rows(job.id):
        attempts.setdefault(row.generation, []).append(row)
    for generation in sorted(nodes.keys() & attempts.keys(), reverse=True):
        rows, offer = attempts[generation], nodes[generation].offer
        warm_us = min(row.first_at_us for row in rows) + WARM_UP_US
        warm_rows = [row for row in rows if row.first_at_us >= warm_us and row.busy_s > 0]
        steps = sum(row.to_step - row.from_step + 1 for row in warm_rows)
        if steps < MEASURED_STEPS:
            continue
        gpus = offer.accelerator_count * job.spec.resources.num_nodes
        tokens = float(sum(row.tokens for row in warm_rows))
        if not tokens:
            per_gpu_task = task.on(gpus)
            replicas = per_gpu_task.run.replicas * per_gpu_task.run.context
            tokens = steps * per_gpu_task.trained_tokens * replicas * task.run.accumulation
        rate = tokens / sum(row.busy_s for row in warm_rows)
        return Measured(rate, steps, offer.accelerator, gpus)
    return None


def with_sizes(call: ApiRequest, text: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan with `size` for each offer where the job file describes its model.

    Uses the throughput measured by the last job of that name.
    """
    model_fields = read_model_block(text)
    if not model_fields:
        return dict(data)
    task = task_of(model_fields)
    last_job = call.context.store.jobs.find(data["job"])
    measured = measured_of(call.context.store, last_job, task) if last_job else None
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
