"""What a node is told: built from the job and the committed node alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from providers.base import Provider
from spotd.container import container_of, pinned
from spotd.decide.baking import needs_setup
from spotd.decide.cadence import Terms
from spotd.decide.expiry import expires_us, life_limit_s
from spotd.decide.gangs import shrinks, size_of
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
        wipe=not job.spec.bake,
        keep_s=job.spec.keep_on_failure_s,
        prepared_file=provider.prepared_file,
        regroups=shrinks(job.spec),
        ends_s=max(1.0, (node.offer.ends_at_us - now_us) / S) if node.offer.ends_at_us else 0.0,
    )


def addresses_of(gang: Collection[Node]) -> tuple[str, ...]:
    """By rank, where the ranks of a gang find each other: in their own network, where that is one
    for all of them (a provider's, in a region) and each address there is known. Public addresses
    are for us alone: what the network lets in from them is SSH."""
    ranks = sorted(gang, key=lambda node: node.rank)
    networks = {(node.offer.provider, node.offer.region) for node in ranks}
    if len(networks) == 1 and all(node.private_host for node in ranks):
        return tuple(node.private_host for node in ranks)
    return tuple(node.host for node in ranks)


def start_document(
    job: Job,
    effect: Effect,
    secrets: Mapping[str, str],
    store_options: Mapping[str, str],
    image_digest: str = "",
    terms: Terms | None = None,
) -> StartDocument:
    """What `start(generation)` carries. `effect.data` has the claim and the gang's addresses.
    `image_digest` is of the container image that the job began with, "" before it did; `terms` is
    for a job that chooses its pauses between saves itself."""
    spec, data = job.spec, effect.data
    ips, deadline_s = data["node_ips"], data["claim_deadline_s"]
    if not isinstance(ips, tuple) or not isinstance(deadline_s, float):
        raise TypeError("a START effect carries node_ips and claim_deadline_s")
    return StartDocument(
        job_name=job.name,
        num_nodes=size_of(effect.node, spec),
        node_ips=ips,
        accelerators_per_node=effect.node.offer.accelerator_count,
        setup=spec.setup if needs_setup(spec, effect.node) else "",
        run=spec.run,
        envs=spec.envs,
        secrets=secrets,
        packages=tuple(Package(mount.digest, mount.target) for mount in spec.packages),
        store_url=spec.checkpoint.store,
        store_options=store_options,
        engine=spec.checkpoint.engine,
        claim=str(data["claim"]),
        claim_deadline_s=deadline_s,
        every_steps=spec.checkpoint.every_steps,
        every_s=spec.checkpoint.every_s,
        keep=spec.checkpoint.keep,
        suspect=str(data.get("suspect", "")),
        keep_every_steps=spec.checkpoint.keep_every_steps,
        directory=spec.checkpoint.directory,
        caches=spec.caches,
        cache_bytes=spec.cache_bytes,
        stop_grace_s=spec.stop_grace_s,
        progress_every_s=spec.progress_every_s,
        peer_timeout_s=spec.peer_timeout_s,
        head_generation=job.head.generation if job.head else 0,
        image=pinned(image, image_digest) if (image := container_of(spec.image_id)) else "",
        bake=bool(spec.bake),
        hold=bool(data.get("hold")),
        **({} if terms is None else {"auto": True, **asdict(terms)}),
    )
