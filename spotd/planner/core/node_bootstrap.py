"""Build the documents that a node is started with, from the job and the committed node alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from providers.base import Provider
from spotd.domain.container import container_of, pinned
from spotd.domain.job import Job, JobSpec
from spotd.domain.node import Node
from spotd.domain.plan import Effect
from spotd.domain.units import S
from spotd.planner.core.checkpoint_interval import CheckpointTerms
from spotd.planner.core.expiry import expires_us, life_limit_s
from spotd.planner.core.gangs import shrinks, size_of
from spotd.planner.core.image_build import needs_setup
from spotd.wire import (
    AgentConfig,
    CheckpointPolicy,
    CheckpointStorage,
    Gang,
    HeadClaim,
    OutputRules,
    Package,
    Program,
    ProgramFiles,
    StartDocument,
)


def agent_config(
    deployment: str, job: Job, node: Node, provider: Provider, now_us: int
) -> AgentConfig:
    """Return the configuration of `spot-node run`.

    The metadata service is the cloud's own unless the node's environment names another
    (SPOTD_METADATA_BASE, as local machines do).
    """
    timed = node.lease.expires_at_us > 0
    limit_s = life_limit_s(node) if provider.limits_life else 0
    age_s = (now_us - node.requested_at_us) / S
    return AgentConfig(
        deployment=deployment,
        job_id=node.job_id,
        generation=node.generation,
        rank=node.rank,
        token=node.token,
        watcher=provider.watcher,
        unattended_s=(node.lease.expires_at_us - node.requested_at_us) / S if timed else 0.0,
        left_s=max(0.0, (expires_us(node) - now_us) / S) if timed else 0.0,
        life_s=max(1.0, limit_s - age_s) if limit_s else 0.0,
        power_off=provider.power_off,
        wipe=not job.spec.program.bake,
        keep_s=job.spec.restarts.keep_on_failure_s,
        prepared_file=provider.prepared_file,
        regroups=shrinks(job.spec),
        ends_s=max(1.0, (node.offer.ends_at_us - now_us) / S) if node.offer.ends_at_us else 0.0,
    )


def addresses_of(gang: Collection[Node]) -> tuple[str, ...]:
    """Return the addresses, by rank, at which the ranks of a gang reach each other.

    Empty unless all are in one network (a provider's, in a region) and every address is known.
    Public addresses are for the daemon: the network admits only SSH to them.
    """
    ranks = sorted(gang, key=lambda node: node.rank)
    networks = {(node.offer.provider, node.offer.region) for node in ranks}
    if len(networks) == 1 and all(node.address.private_host for node in ranks):
        return tuple(node.address.private_host for node in ranks)
    return tuple(node.address.host for node in ranks)


def start_document(
    job: Job,
    effect: Effect,
    secrets: Mapping[str, str],
    store_options: Mapping[str, str],
    image_digest: str = "",
    terms: CheckpointTerms | None = None,
) -> StartDocument:
    """Return the document of the `start` command.

    `effect.data` has the claim and the gang's addresses. `image_digest` is the container image that
    the job began with, or "". `terms` is for a job that chooses its own checkpoint interval.
    """
    spec, data = job.spec, effect.data
    ips, deadline_s = data["node_ips"], data["claim_deadline_s"]
    if not isinstance(ips, tuple) or not isinstance(deadline_s, float):
        raise TypeError("a START effect carries node_ips and claim_deadline_s")
    return StartDocument(
        job_name=job.name,
        gang=Gang(
            num_nodes=size_of(effect.node, spec),
            node_ips=ips,
            accelerators_per_node=effect.node.offer.accelerator_count,
            peer_timeout_s=spec.timeouts.peer_timeout_s,
        ),
        program=Program(
            setup=spec.program.setup if needs_setup(spec, effect.node) else "",
            run=spec.program.run,
            envs=spec.program.envs,
            secrets=secrets,
            stop_grace_s=spec.timeouts.stop_grace_s,
            progress_every_s=spec.monitoring.progress_every_s,
            image=_container(spec, image_digest),
            bake=bool(spec.program.bake),
        ),
        files=_program_files(spec),
        storage=CheckpointStorage(store_url=spec.checkpoint.store, store_options=store_options),
        head=HeadClaim(
            claim=str(data["claim"]),
            claim_deadline_s=deadline_s,
            head_generation=job.head.generation if job.head else 0,
            suspect=str(data.get("suspect", "")),
        ),
        checkpoint=_checkpoint_policy(spec, terms),
        hold=bool(data.get("hold")),
    )


def _container(spec: JobSpec, digest: str) -> str:
    """Return the full name of the job's container image; "" for none."""
    image = container_of(spec.resources.image_id)
    return pinned(image, digest) if image else ""


def _program_files(spec: JobSpec) -> ProgramFiles:
    files = spec.files
    return ProgramFiles(
        packages=tuple(Package(mount.digest, mount.target) for mount in files.packages),
        caches=files.caches,
        cache_bytes=files.cache_bytes,
        outputs=_output_rules(spec),
    )


def _checkpoint_policy(spec: JobSpec, terms: CheckpointTerms | None) -> CheckpointPolicy:
    saves = spec.checkpoint
    return CheckpointPolicy(
        engine=saves.engine,
        every_steps=saves.every_steps,
        every_s=saves.every_s,
        keep=saves.keep,
        keep_every_steps=saves.keep_every_steps,
        directory=saves.directory,
        include=saves.include,
        exclude=saves.exclude,
        **({} if terms is None else {"auto": True, **asdict(terms)}),
    )


def _output_rules(spec: JobSpec) -> OutputRules | None:
    """Return which files the agent uploads at the end; None for none."""
    if spec.program.bake or spec.files.outputs == ():
        return None
    return OutputRules(spec.files.outputs or ())
