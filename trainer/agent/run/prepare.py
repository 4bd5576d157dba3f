"""Prepare the job's files, and the environment of its scripts."""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spotd import wire
from spotd.wire import AgentConfig, CheckpointPolicy, Package, StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.paths import AgentPaths
from trainer.agent.data.buckets import copy_buckets
from trainer.agent.data.caches import restore_caches
from trainer.agent.data.mounts import mount_buckets
from trainer.agent.data.packages import PackageError, unpack_packages
from trainer.agent.run.hook_wheel import hook_wheel_path
from trainer.agent.run.saver_env import ensure_saver_env
from trainer.directory.completeness import newest_unit

# Variables that configure the agent itself and must not reach the job.
_AGENT_VARIABLES = frozenset(
    {"SPOTD_METADATA_BASE", "SPOTD_LOG_LIMIT_BYTES", "SPOTD_HANG_S", "SPOTD_KMSG"}
    | {"SPOTD_PREPARED_S", "SPOTD_CACHE_QUIET_S", "SPOTD_LEFT_FILES_S"}
)
_FIRST_PORT, _PORTS = 20_000, 10_000


def build_env(
    base: Mapping[str, str],
    config: AgentConfig,
    start: StartDocument,
    paths: AgentPaths,
    *,
    claim_until: float,
) -> dict[str, str]:
    """Build the environment of `setup` and `run`: the machine's, the job's, then ours; the last one
    wins.

    It contains how HEAD may be claimed, with times on the monotonic clock, for programs that have
    not connected to the agent yet.
    """
    machine = {name: value for name, value in base.items() if name not in _AGENT_VARIABLES}
    env = {
        "PYTHONUNBUFFERED": "1",
        **machine,
        **_rendezvous_env(config, start),
        **start.program.envs,
        **start.program.secrets,
        **_job_env(config, start, paths, claim_until=claim_until),
    }
    # After the program's own entries, so that our modules hide none of its.
    env["PYTHONPATH"] = ":".join(filter(None, (env.get("PYTHONPATH"), hook_path())))
    return env


def _job_env(
    config: AgentConfig, start: StartDocument, paths: AgentPaths, *, claim_until: float
) -> dict[str, str]:
    """Return the variables by which programs learn of their job, its store and their rank."""
    gang, storage = start.gang, start.storage
    rank, nodes = str(config.rank), str(gang.num_nodes)
    return {
        "SPOTD_JOB_ID": config.job_id,
        "SPOTD_JOB_NAME": start.job_name,
        "SPOTD_GENERATION": str(config.generation),
        "SPOTD_RANK": rank,
        "SPOTD_NUM_NODES": nodes,
        "SPOTD_TOKEN": config.token,
        "SPOTD_SOCKET": str(paths.worker_socket),
        "SPOTD_SAVER": str(paths.saver_socket),
        "SPOTD_HOOK": str(hook_wheel_path(paths.folder)),
        "SPOTD_CLAIM": start.head.claim,
        "SPOTD_CLAIM_UNTIL": f"{claim_until:.3f}",
        "SPOTD_HEAD_GENERATION": str(start.head.head_generation),
        "SPOTD_SUSPECT": start.head.suspect,
        "SPOTD_STORE_URL": storage.store_url,
        "SPOTD_STORE_OPTIONS": json.dumps(dict(storage.store_options), sort_keys=True),
        "SPOTD_SHARDS_URL": storage.shards_url,
        "SPOTD_SHARD_STORES": json.dumps(storage.others, sort_keys=True),
        **_checkpoint_env(start.checkpoint),
        **_directory_env(start, paths),
        "SPOTD_PROGRESS_EVERY_S": f"{start.program.progress_every_s:g}",
        "SPOTD_PEER_TIMEOUT_S": f"{gang.peer_timeout_s:g}" if gang.peer_timeout_s else "",
        # Variables that a SkyPilot task expects.
        "SKYPILOT_TASK_ID": f"sky-{config.job_id}",
        "SKYPILOT_NODE_IPS": "\n".join(gang.node_ips),
        "SKYPILOT_NODE_RANK": rank,
        "SKYPILOT_NUM_NODES": nodes,
        "SKYPILOT_NUM_GPUS_PER_NODE": str(gang.accelerators_per_node),
    }


def _checkpoint_env(policy: CheckpointPolicy) -> dict[str, str]:
    """Return how often the program saves, and what is kept."""
    return {
        "SPOTD_ENGINE": policy.engine,
        "SPOTD_EVERY_STEPS": str(policy.every_steps),
        "SPOTD_EVERY_S": f"{policy.every_s:g}",
        "SPOTD_EVERY": "auto" if policy.auto else "",
        "SPOTD_MTBF_S": f"{policy.mtbf_s:g}",
        "SPOTD_GB_COSTS_S": f"{policy.gb_costs_s:g}",
        "SPOTD_PUT_COSTS_S": f"{policy.put_costs_s:g}",
        "SPOTD_KEEP": str(policy.keep),
        "SPOTD_KEEP_EVERY": str(policy.keep_every_steps),
    }


def _rendezvous_env(config: AgentConfig, start: StartDocument) -> dict[str, str]:
    """Return torchrun's rendezvous options for a gang, as variables (`PET_` and the option's name).

    The job's own command line overrides them. The static rendezvous is used: its ranks are ours,
    and rank 0 is where HEAD is claimed. Each generation has its own port, below the kernel's
    ephemeral range, so that no process meets one of an earlier generation.
    """
    if start.gang.num_nodes < 2 or not start.gang.node_ips:
        return {}
    port_offset = zlib.crc32(f"{config.job_id}/{config.generation}".encode())
    # Both names of the timeout: of the static rendezvous and of others that a command may choose.
    wait_s = f"{start.gang.peer_timeout_s:.0f}"
    timeout_conf = {"PET_RDZV_CONF": f"timeout={wait_s},join_timeout={wait_s}"}
    return {
        **(timeout_conf if start.gang.peer_timeout_s else {}),
        "PET_NNODES": str(start.gang.num_nodes),
        "PET_NODE_RANK": str(config.rank),
        "PET_MASTER_ADDR": start.gang.node_ips[0],
        "PET_MASTER_PORT": str(_FIRST_PORT + port_offset % _PORTS),
    }


def _directory_env(start: StartDocument, paths: AgentPaths) -> dict[str, str]:
    """Return the folder to save to, and the checkpoint to resume from, if there is one."""
    if not start.checkpoint.directory:
        return {}
    folder = paths.in_workdir(start.checkpoint.directory)
    with contextlib.suppress(OSError):
        return {"SPOTD_DIRECTORY": str(folder), "SPOTD_RESUME": newest_unit(folder)}
    return {"SPOTD_DIRECTORY": str(folder), "SPOTD_RESUME": ""}


def hook_path() -> str:
    """Return where programs find `spotd_hook`: in our archive, or in our source folder."""
    return str(Path(__file__).parents[2] / "hook")


def start_preparing(
    context: AgentContext,
    start: StartDocument,
    *,
    cancelled: Callable[[], bool],
    done: Callable[[str], None],
) -> None:
    """Prepare the job's files in a thread, once the machine is prepared.

    The loop then gets `done(error)`, with "" if the job's files, mounts and caches are in place.
    Stops early if `cancelled`.
    """

    def unpack() -> None:
        if context.paths.inherits_workdir:  # an earlier generation unpacked and set up everything
            link_workdir(context.paths.workdir, Path.home())
            error = mount_buckets(context, start, cancelled)
            context.post(lambda: done(error))
        elif context.preparation.wait(cancelled):
            problem = ensure_saver_env(context.paths.home, start.tools)
            if problem:
                context.journal.append(wire.WARNING, {"text": problem})
            error = unpack_all(context.paths, start.files.packages)
            error = error or copy_buckets(context, start, cancelled)
            error = error or mount_buckets(context, start, cancelled)
            if not error:
                restore_caches(context, start, cancelled)
            context.post(lambda: done(error))

    threading.Thread(target=unpack, name="unpack", daemon=True).start()


def unpack_all(paths: AgentPaths, packages: Sequence[Package]) -> str:
    """Put the job's files in place; returns the error, or ""."""
    try:
        # The link comes first, so that a mount below ~/sky_workdir is in the workdir.
        link_workdir(paths.workdir, Path.home())
        unpack_packages(paths.home, paths.workdir, packages)
    except (PackageError, OSError) as error:
        return str(error) or repr(error)
    return ""


def link_workdir(workdir: Path, home: Path) -> None:
    """Link `~/sky_workdir`, which scripts may use, to this generation's folder."""
    link = home / "sky_workdir"
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        link.symlink_to(workdir)
