"""What a node is told: built from the job and the committed node alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

from providers.base import Provider
from spotd.decide.expiry import expires_us, life_limit_s
from spotd.model import Job, Node, S
from spotd.plan import (
    Effect,
)
from spotd.wire import AgentConfig, Package, StartDocument


def agent_config(
    deployment: str, job: Job, node: Node, provider: Provider, now_us: int
) -> AgentConfig:
    """What `spot-node run` gets. The metadata service is the cloud's own unless the node's
    environment names another (SPOTD_METADATA_BASE, as local machines do)."""
    timed = node.expires_at_us > 0
    limit_s = life_limit_s(node) if provider.limits_life else 0
    age_s = (now_us - node.requested_at_us) / S
    return AgentConfig(
        *(deployment, node.job_id, node.generation, node.rank, node.token, provider.watcher),
        unattended_s=(node.expires_at_us - node.requested_at_us) / S if timed else 0.0,
        left_s=max(0.0, (expires_us(node) - now_us) / S) if timed else 0.0,
        life_s=max(1.0, limit_s - age_s) if limit_s else 0.0,
        power_off=provider.power_off,
        wipe=True,
        keep_s=job.spec.keep_on_failure_s,
        prepared_file=provider.prepared_file,
    )


def start_document(
    job: Job, effect: Effect, secrets: Mapping[str, str], store_options: Mapping[str, str]
) -> StartDocument:
    """What `start(generation)` carries. `effect.data` has the claim and the gang's addresses, and
    which part of the job's own pause between saves there is to be now."""
    spec, data = job.spec, effect.data
    cadence = data.get("cadence", 1.0)
    ips, deadline_s = data["node_ips"], data["claim_deadline_s"]
    if not isinstance(ips, tuple) or not isinstance(deadline_s, float):
        raise TypeError("a START effect carries node_ips and claim_deadline_s")
    if not isinstance(cadence, float):
        raise TypeError("the cadence of a START effect is a number")
    return StartDocument(
        job_name=job.name,
        num_nodes=spec.num_nodes,
        node_ips=ips,
        accelerators_per_node=effect.node.offer.accelerator_count,
        setup=spec.setup,
        run=spec.run,
        envs=spec.envs,
        secrets=secrets,
        packages=tuple(Package(mount.digest, mount.target) for mount in spec.packages),
        store_url=spec.checkpoint.store,
        store_options=store_options,
        engine=spec.checkpoint.engine,
        claim=str(data["claim"]),
        claim_deadline_s=deadline_s,
        every_steps=math.ceil(spec.checkpoint.every_steps * cadence),
        every_s=spec.checkpoint.every_s * cadence,
        keep=spec.checkpoint.keep,
        stop_grace_s=spec.stop_grace_s,
        progress_every_s=spec.progress_every_s,
        head_generation=job.head.generation if job.head else 0,
    )
