"""Routes for SSH access to a job's machine."""

from __future__ import annotations

from typing import Any

from spotd.act.node_link import LinkError
from spotd.api.request.request import ApiError, ApiRequest, conflict, not_found
from spotd.api.routes.users import check_enabled
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.security.secrets import host_key, make_key_pair, open_job_keys


def ssh_address(call: ApiRequest) -> dict[str, Any]:
    """Return the address and user name of the job's machine of a `rank`: the one that is training,
    otherwise the newest that can be reached. Grants no access."""
    return _address(call, *_machine(call))


def ssh_access(call: ApiRequest) -> dict[str, Any]:
    """Return the same with a new private key for this caller, which the machine accepts from now
    on. The daemon's own key never leaves it."""
    job, node = _machine(call)
    address = _address(call, job, node)
    pair = make_key_pair(call.context.ids.random_bytes)
    try:
        call.context.users.admit(node, call.actor, pair.public)
    except LinkError as error:
        message = f"the machine of job {job.name} accepts no login now: {error}"
        raise conflict(message, f"check spotctl show {job.name} and retry") from None
    try:
        check_enabled(call)
    except ApiError:
        call.context.users.end_access_of_disabled_users()
        raise
    return {**address, "private_key": pair.private}


def _machine(call: ApiRequest) -> tuple[Job, Node]:
    """Return the job and its machine of the requested rank. Raises ApiError where none is
    reachable.
    """
    job = call.job()
    rank = call.number("rank", 0, 0, 1 << 20)
    if rank >= job.spec.resources.num_nodes:
        raise not_found(
            f"job {job.name} has no rank {rank}",
            f"a rank from 0 to {job.spec.resources.num_nodes - 1}",
        )
    nodes = [n for n in call.context.store.nodes.of_job(job.id) if n.rank == rank and _reachable(n)]
    if not nodes:
        raise conflict(
            f"job {job.name} has no machine that can be reached now",
            f"spotctl show {job.name} shows what it is waiting for",
        )
    return job, max(nodes, key=lambda n: (n.state is NodeState.RUNNING, n.chosen, n.generation))


def _address(call: ApiRequest, job: Job, node: Node) -> dict[str, Any]:
    jump = call.context.clouds.jump_host(node.offer.provider)
    keys = open_job_keys(call.context.vault, job.id, call.context.store.jobs.key(job.id))
    return {
        "kind": "SshAccess",
        "job": job.name,
        "node_id": node.id,
        "generation": node.generation,
        "host": node.address.host,
        "port": node.address.port or 22,
        "user": node.address.ssh_user,
        "host_public_key": node.address.host_public_key or host_key(keys, node.token).public,
        "local": node.offer.local,
        "jump": None
        if jump is None
        else {"host": jump.host, "port": jump.port, "host_public_key": jump.host_public_key},
    }


def _reachable(node: Node) -> bool:
    ended = node.state in (NodeState.TERMINATING, NodeState.GONE)
    return bool(node.address.host and node.address.ssh_user) and not ended
