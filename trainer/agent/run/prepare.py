"""What a script gets from us: its environment, and the order that the keeper runs it by."""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spotd import wire
from spotd.wire import AgentConfig, Package, StartDocument
from trainer.agent.base.context import AgentContext
from trainer.agent.base.paths import AgentPaths, write_private
from trainer.agent.data.buckets import copy_buckets
from trainer.agent.data.caches import restore_caches
from trainer.agent.data.mounts import mount_buckets
from trainer.agent.data.packages import PackageError, unpack_packages
from trainer.agent.process.script_supervisor import Order
from trainer.agent.run.saver_env import make_tools
from trainer.directory.units import newest_in

# Set by the way that the agent itself was started, and wrong for anybody else.
_OURS = frozenset(
    {"SPOTD_METADATA_BASE", "SPOTD_LOG_LIMIT_BYTES", "SPOTD_HANG_S", "SPOTD_KMSG"}
    | {"SPOTD_PREPARED_S", "SPOTD_CACHE_QUIET_S"}
)
_FIRST_PORT, _PORTS = 20_000, 10_000


def build_env(
    base: Mapping[str, str],
    config: AgentConfig,
    start: StartDocument,
    places: AgentPaths,
    claim_until: float,
) -> dict[str, str]:
    """The environment of `setup` and `run`: the machine's, the job's, ours; the last one wins.

    How HEAD is to be claimed, on the monotonic clock, is in it for as long as we do not speak.
    """
    rank, nodes = str(config.rank), str(start.num_nodes)
    ours = {
        "SPOTD_JOB_ID": config.job_id,
        "SPOTD_JOB_NAME": start.job_name,
        "SPOTD_GENERATION": str(config.generation),
        "SPOTD_RANK": rank,
        "SPOTD_NUM_NODES": nodes,
        "SPOTD_TOKEN": config.token,
        "SPOTD_SOCKET": str(places.worker_socket),
        "SPOTD_SAVER": str(places.saver_socket),
        "SPOTD_ENGINE": start.engine,
        "SPOTD_CLAIM": start.claim,
        "SPOTD_CLAIM_UNTIL": f"{claim_until:.3f}",
        "SPOTD_HEAD_GENERATION": str(start.head_generation),
        "SPOTD_STORE_URL": start.store_url,
        "SPOTD_STORE_OPTIONS": json.dumps(dict(start.store_options), sort_keys=True),
        "SPOTD_SHARDS_URL": start.shards_url,
        "SPOTD_SHARD_STORES": json.dumps(start.other_stores, sort_keys=True),
        "SPOTD_EVERY_STEPS": str(start.every_steps),
        "SPOTD_EVERY_S": f"{start.every_s:g}",
        "SPOTD_EVERY": "auto" if start.auto else "",
        "SPOTD_MTBF_S": f"{start.mtbf_s:g}",
        "SPOTD_GB_COSTS_S": f"{start.gb_costs_s:g}",
        "SPOTD_PUT_COSTS_S": f"{start.put_costs_s:g}",
        "SPOTD_KEEP": str(start.keep),
        "SPOTD_KEEP_EVERY": str(start.keep_every_steps),
        "SPOTD_SUSPECT": start.suspect,
        **_directory(start, places),
        "SPOTD_PROGRESS_EVERY_S": f"{start.progress_every_s:g}",
        "SPOTD_PEER_TIMEOUT_S": f"{start.peer_timeout_s:g}" if start.peer_timeout_s else "",
        # What a SkyPilot task expects to find.
        "SKYPILOT_TASK_ID": f"sky-{config.job_id}",
        "SKYPILOT_NODE_IPS": "\n".join(start.node_ips),
        "SKYPILOT_NODE_RANK": rank,
        "SKYPILOT_NUM_NODES": nodes,
        "SKYPILOT_NUM_GPUS_PER_NODE": str(start.accelerators_per_node),
    }
    machine = {name: value for name, value in base.items() if name not in _OURS}
    meeting = _meeting(config, start)
    found = {"PYTHONUNBUFFERED": "1", **machine, **meeting, **start.envs, **start.secrets, **ours}
    # Behind the program's own: nothing of ours is in the way of what it brings.
    found["PYTHONPATH"] = ":".join(filter(None, (found.get("PYTHONPATH"), hook_path())))
    return found


def _meeting(config: AgentConfig, start: StartDocument) -> dict[str, str]:
    """Where torchrun's agents of a gang meet, by the variables that it takes its options from
    (`PET_` and the option's name); what the job's own command says wins. By the static rendezvous:
    its ranks are ours, and rank 0 is where HEAD is claimed. Each generation has a port of its own,
    from below those that the kernel hands out: nobody meets who is left of the one before."""
    if start.num_nodes < 2 or not start.node_ips:
        return {}
    place = zlib.crc32(f"{config.job_id}/{config.generation}".encode())
    # By both of its names: the static rendezvous', and that of those that a command may ask for.
    wait_s = f"{start.peer_timeout_s:.0f}"
    conf = {"PET_RDZV_CONF": f"timeout={wait_s},join_timeout={wait_s}"}
    return {
        **(conf if start.peer_timeout_s else {}),
        "PET_NNODES": str(start.num_nodes),
        "PET_NODE_RANK": str(config.rank),
        "PET_MASTER_ADDR": start.node_ips[0],
        "PET_MASTER_PORT": str(_FIRST_PORT + place % _PORTS),
    }


def _directory(start: StartDocument, places: AgentPaths) -> dict[str, str]:
    """Where the program is to save, and the checkpoint to go on from, if there is one."""
    if not start.directory:
        return {}
    folder = places.below_workdir(start.directory)
    with contextlib.suppress(OSError):
        return {"SPOTD_DIRECTORY": str(folder), "SPOTD_RESUME": newest_in(folder)}
    return {"SPOTD_DIRECTORY": str(folder), "SPOTD_RESUME": ""}


def hook_path() -> str:
    """Where programs find `spotd_hook`: in our archive, or in our source folder."""
    return str(Path(__file__).parents[2] / "hook")


def make_order(
    name: str,
    stream: str,
    script: str,
    env: Mapping[str, str],
    places: AgentPaths,
    secrets: list[str],
    limit: int,
) -> Order:
    """An order to run `script` with bash, its output going to `stream`.

    The text goes into a private file, never into a command. Raises OSError.
    """
    path = places.memory / f"{name}.sh"
    write_private(path, script.encode())
    return Order(
        argv=["bash", str(path)],
        cwd=str(places.workdir),
        env=env,
        log=str(places.logs / f"{stream}.log"),
        log_limit_bytes=limit,
        state=str(places.memory / name),
        wake=str(places.control_socket),
        secrets=secrets,
        lent=str(places.lent),
    )


def start_unpacking(
    site: AgentContext,
    start: StartDocument,
    given_up: Callable[[], bool],
    done: Callable[[str], None],
) -> None:
    """Once the machine is prepared, and in a thread of its own: the loop hears by `done` why the
    job's files are not in place, or "" where they are, and what its caches have beside them.
    Nothing of one that is `given_up`."""

    def unpack() -> None:
        if site.places.inherits:  # all is in place since an earlier generation, and set up
            link_workdir(site.places.workdir, Path.home())
            error = mount_buckets(site, start, given_up)
            site.post(lambda: done(error))
        elif site.preparation.wait(given_up):
            trouble = make_tools(site.places.home, start.tools)
            if trouble:
                site.journal.append(wire.WARNING, {"text": trouble})
            error = unpack_all(site.places, start.packages)
            error = error or copy_buckets(site, start, given_up)
            error = error or mount_buckets(site, start, given_up)
            if not error:
                restore_caches(site, start, given_up)
            site.post(lambda: done(error))

    threading.Thread(target=unpack, name="unpack", daemon=True).start()


def unpack_all(places: AgentPaths, packages: Sequence[Package]) -> str:
    """Put the job's files in place; why not, or nothing."""
    try:
        # First the link: a mount below ~/sky_workdir is to land in the workdir.
        link_workdir(places.workdir, Path.home())
        unpack_packages(places.home, places.workdir, packages)
    except (PackageError, OSError) as error:
        return str(error) or repr(error)
    return ""


def link_workdir(workdir: Path, home: Path) -> None:
    """Let `~/sky_workdir`, which scripts may name, lead to this generation's folder."""
    link = home / "sky_workdir"
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        link.symlink_to(workdir)
