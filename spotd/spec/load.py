"""From the text of a job file to a JobSpec, with everything that is wrong with it said at once."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from pathlib import PurePosixPath
from typing import Any

from spotd.base.errors import suggest
from spotd.base.validation import validate_partly
from spotd.domain.container import container_of
from spotd.domain.health import HealthSpec
from spotd.domain.job import CheckpointSpec, JobSpec
from spotd.domain.queue import NORMAL
from spotd.spec.block import Ignored
from spotd.spec.budget import read_caps
from spotd.spec.checkpoint_every import RISKS, CheckpointEvery
from spotd.spec.document import SpecError, parse
from spotd.spec.file import Checkpoint, JobFile, SpotdBlock
from spotd.spec.findings import Findings
from spotd.spec.gangs import peer_timeout_s, read_elastic
from spotd.spec.model import check_model
from spotd.spec.places import MachineRequest, wanted, with_capacity
from spotd.spec.preferences import wished
from spotd.spec.quantities import parse_moment_us
from spotd.spec.sources import CheckpointOrigin, read_folders, read_sources
from spotd.spec.variables import check_login, fill, read_environment, read_secrets

_FILLED = frozenset({"workdir", "file_mounts"})
_MIN_EVERY_S = 1.0
FALLBACK_S = 300.0  # for a program that cannot choose by itself
# A pause that ends before the save has ended would throw paid steps away; a script of which nothing
# is known gets what it would get elsewhere.
_STOP_GRACE_S = {"spotd": 300.0, "none": 30.0}


@dataclass(frozen=True)
class CheckpointDefaults:
    """`[checkpoint]` of the configuration. `store` "" is none; `every` None is `every_s`."""

    store: str = ""
    every_s: float = FALLBACK_S
    keep: int = 3
    every: CheckpointEvery | None = None


@dataclass(frozen=True)
class KnownNames:
    """Names that a job file may use; None where they are not known (on the user's machine)."""

    clouds: Collection[str] | None = None  # names and makes of the configured providers
    routes: Collection[str] | None = None  # of alerts
    secrets: Collection[str] | None = None  # that the deployment keeps
    datasets: Collection[str] | None = None  # that it has declared


@dataclass(frozen=True)
class ParsedJobFile:
    """A job file understood.

    `spec` has no packages yet. `workdir` and the local side of `mounts` are absolute and exist if
    a base folder was given, else they are as written. `secrets` has the values that were given,
    `text` the file without them; `spec.secrets` names as well those that the deployment is to give,
    when the job starts. `warnings` are whole sentences for the user.
    """

    spec: JobSpec
    workdir: FilePath | None
    mounts: tuple[tuple[FilePath, str], ...]
    warnings: tuple[str, ...]
    secrets: Mapping[str, str] = field(repr=False)
    text: str = field(repr=False)
    origin: CheckpointOrigin | None = None  # what is to be imported before the job is submitted


def load(  # noqa: PLR0913 - what a job file is read with is as much
    text: str,
    *,
    now_us: int,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    defaults: CheckpointDefaults | None = None,
    base_dir: FilePath | None = None,
    fallback_name: str = "",
    known: KnownNames | None = None,
    bake: bool = False,
) -> ParsedJobFile:
    """Parse and check one job file.

    `env` and `secrets` replace or add values (`--env`, `--secret`). `defaults` None means that the
    configuration is not at hand: a missing store is then left empty. `base_dir` is the folder that
    relative local paths start from (SkyPilot: where the command is run). `fallback_name` is for a
    file that gives no name. `$NAME` and `${NAME}` of `envs` are filled into workdir and file_mounts
    (keys and values) and nowhere else, as SkyPilot does; secrets never are. With `bake` only
    `setup` is to be done: `run` and a store may be missing, and a container is refused.

    Raises SpecError with every problem found.
    """
    document = parse(text)
    found = Findings()
    # Filled in before the model looks, so that what it judges is what will be used.
    environment = read_environment(document, env or {}, found)
    data = {str(key): value for key, value in copy.deepcopy(document.data).items()}
    data |= {key: fill(data[key], environment) for key in _FILLED & data.keys()}
    file, found_by_model = validate_partly(JobFile, data)
    found.problems += found_by_model
    known = known or KnownNames()
    hidden, kept = read_secrets(file, secrets or {}, environment, known.secrets, found)
    check_login(environment, {*hidden, *kept}, found)
    _note_marked(file, found)
    place = wanted(file.resources, known.clouds, found, ("resources",))
    place = wished(with_capacity(place, file, found), file, found)
    spec = _spec(file, place, None if bake else defaults, now_us, found)
    _check_run(file, place, found, bake=bake)
    spec = replace(
        spec,
        name=_job_name(file, fallback_name, found),
        envs=environment,
        secrets=tuple(sorted({*hidden, *kept})),
        alerts=_routes(file.spotd, known.routes, found),
        caps=read_caps(file.spotd.budget, known.routes, found),
        **read_folders(file, container_of(place.image_id), known.datasets, found),
    )
    _check_directory(file, place, found)
    workdir, mounts, origin = read_sources(file, base_dir, found)
    if found.problems:
        raise SpecError(*found.located(document))
    warnings = tuple(found.sentences(document))
    text = document.without_values("secrets")
    return ParsedJobFile(spec, workdir, mounts, warnings, secrets=hidden, text=text, origin=origin)


def _note_marked(file: JobFile, found: Findings) -> None:
    """SkyPilot's keys that mean nothing here, or something that is not to be had."""
    for path, mark in file.marked():
        if isinstance(mark, Ignored):
            found.warn(
                path, "is a SkyPilot key that spotd does not support; it is ignored", mark.reason
            )
        else:
            found.refuse(path, "is a SkyPilot key that spotd does not support", mark.fix)


def _check_run(file: JobFile, place: MachineRequest, found: Findings, *, bake: bool) -> None:
    """Whether there is something to do."""
    if not bake and not file.run.strip():
        found.refuse(("run",), "is missing", "write the command that trains")
    if bake and not file.setup.strip():
        found.refuse(("setup",), "is empty: there is nothing to bake", "write what to install")
    if bake and container_of(place.image_id):
        text = "is a container's, and no image of a machine is made of one"
        found.refuse(("resources", "image_id"), text, "build a container image that has setup done")


def _job_name(file: JobFile, fallback: str, found: Findings) -> str:
    if file.name:
        return file.name
    # A file's own name is a fair name for its job once it is made of what names are made of.
    name = re.sub(r"[^A-Za-z0-9]+", "-", fallback)[:63].strip("-")
    if not name:
        found.refuse(("name",), "is missing", "name the job")
    return name


def _spec(
    file: JobFile,
    place: MachineRequest,
    defaults: CheckpointDefaults | None,
    now_us: int,
    found: Findings,
) -> JobSpec:
    block = file.spotd
    restarts, codes = block.max_restarts_on_errors, block.recover_on_exit_codes
    restarts = place.restarts if restarts is None else restarts
    times: dict[str, float | None] = {
        "keep_on_failure_s": block.keep_on_failure,
        "max_duration_s": block.max_duration,
        "stop_grace_s": (
            _STOP_GRACE_S[block.checkpoint.engine] if block.stop_grace is None else block.stop_grace
        ),
        "boot_timeout_s": block.boot_timeout,
        "setup_timeout_s": block.setup_timeout,
        "peer_timeout_s": peer_timeout_s(block.peer_timeout, block.setup_timeout),
        "progress_every_s": block.progress_every,
    }
    for name in ("boot_timeout", "setup_timeout", "peer_timeout", "progress_every"):
        if getattr(block, name) == 0:
            found.refuse(("spotd", name), "must be more than 0", "write a duration like 10m")
    if block.slow_network and file.num_nodes == 1:
        found.warn(("spotd", "slow_network"), "says nothing of one machine: num_nodes is 1")
    check_model(block.model, found)
    health = HealthSpec(block.health.ratio, block.health.checks, block.health.every)
    if health.check_every_s < 1:
        found.refuse(("spotd", "health", "every"), "must be at least 1s", "30s is the default")
    spec = JobSpec(
        name="",
        run=file.run,
        setup=file.setup,
        num_nodes=file.num_nodes,
        alternatives=place.alternatives,
        ordered=place.ordered,
        capacity_ordered=place.capacity_ordered,
        image_id=place.image_id,
        disk_gib=place.disk_gib,
        max_hourly_microusd=place.max_hourly_microusd,
        max_cost_microusd=block.budget.max_cost_usd or 0,
        deadline_us=_deadline_us(block, now_us, found),
        recover_on_exit_codes=(place.exit_codes or ()) if codes is None else tuple(codes),
        candidates=block.candidates,
        wishes=place.wishes,
        project=block.project or "",
        after=block.after or "",
        priority=_priority(file),
        fast_network=file.num_nodes > 1 and not block.slow_network,
        elastic=read_elastic(file, found),
        health=health,
        checkpoint=_checkpoint(block.checkpoint, defaults, found),
    )
    chosen: dict[str, Any] = {**times, "max_restarts_on_errors": restarts}
    return replace(spec, **{name: value for name, value in chosen.items() if value is not None})


def _priority(file: JobFile) -> int:
    """0 to 1000. SkyPilot's runs from -1000 to 1000, and 0 is what one gets without it."""
    if file.spotd.priority is not None:
        return file.spotd.priority
    top = file.resources
    kinds = (top, *(top.any_of or ()), *(top.ordered or ()))
    named = next((kind.priority for kind in kinds if kind.priority is not None), None)
    return NORMAL if named is None else (named + 1000) // 2


def _deadline_us(block: SpotdBlock, now_us: int, found: Findings) -> int:
    if not block.deadline:
        return 0
    try:
        return parse_moment_us(block.deadline, now_us)
    except ValueError as error:
        text, _, fix = str(error).partition("; ")
        found.refuse(("spotd", "deadline"), text, fix)
        return 0


def _checkpoint(
    block: Checkpoint, defaults: CheckpointDefaults | None, found: Findings
) -> CheckpointSpec:
    base = defaults or CheckpointDefaults()
    store = block.store or base.store
    if not store and defaults is not None:
        found.refuse(
            ("spotd", "checkpoint", "store"),
            "the job has nowhere to save: neither the job file nor the configuration names a store",
            "set spotd.checkpoint.store here, or [checkpoint] store in config.toml for all jobs",
        )
    keep = base.keep if block.keep is None else block.keep
    every = _every(block, base, found)
    return CheckpointSpec(
        store,
        block.engine,
        every.steps or block.every_steps,
        every.seconds,
        keep,
        auto=every.auto,
        size_bytes=block.size or 0,
        keep_every_steps=_keep_every(block, found),
        directory=_directory(block, found),
        shards=tuple(dict.fromkeys(block.shards or [store])) if block.shards is not None else (),
    )


def _check_directory(file: JobFile, place: MachineRequest, found: Findings) -> None:
    """Whether the agent can see all of the folder that it is to keep."""
    block = file.spotd.checkpoint
    if block.mode is None:
        return
    if file.num_nodes > 1:
        text = "is for one machine, and num_nodes is more"
        found.refuse(("spotd", "checkpoint", "mode"), text, "save by spotd_hook: engine: spotd")
    if block.path and block.path.startswith("/") and container_of(place.image_id):
        text = f"{block.path!r} is in the container, where the agent cannot see it"
        found.refuse(("spotd", "checkpoint", "path"), text, "write one below the workdir, like out")


def _directory(block: Checkpoint, found: Findings) -> str:
    """The folder that the agent keeps in the store; "" for none."""
    mode, path = (("spotd", "checkpoint", name) for name in ("mode", "path"))
    if block.mode is None:
        if block.path is not None:
            found.refuse(path, "is of mode: directory", "add that, or leave path out")
        return ""
    if block.engine != "none":
        text = "is for programs that do not save by spotd_hook"
        found.refuse(mode, text, "leave mode and path out, or engine: spotd")
    if block.path is None:
        found.refuse(mode, "needs a folder", "add path: out, where the program saves")
        return ""
    parts = PurePosixPath(block.path).parts
    if not parts or ".." in parts or parts[0].startswith("~"):
        text = f"{block.path!r} is no folder of checkpoints"
        found.refuse(path, text, "write one below the workdir, like out, or an absolute one")
        return ""
    return block.path


def _keep_every(block: Checkpoint, found: Findings) -> int:
    if block.keep_every and block.engine == "none" and block.mode is None:
        where = ("spotd", "checkpoint", "keep_every")
        text = "is of checkpoints, and a program of its own has none that spotd keeps"
        found.refuse(where, text, "leave it out, or write engine: spotd if the program uses that")
    return block.keep_every


def _every(block: Checkpoint, base: CheckpointDefaults, found: Findings) -> CheckpointEvery:
    """What the job goes by. `seconds` is there for `auto` as well: an older agent goes by them."""
    where, own = ("spotd", "checkpoint", "every"), block.every
    every = own or base.every or CheckpointEvery(seconds=base.every_s)
    if own and own.steps and block.every_steps:
        found.refuse(where, "says steps, and so does every_steps", "leave one of them out")
    if every.auto and block.every_steps and own is None:
        return CheckpointEvery(seconds=base.every_s)
    if every.auto and block.engine == "none":
        if own:
            text = "auto goes by measured saves, and of a program of its own none is measured"
            found.refuse(where, text, "write a time like 5m, or engine: spotd if it uses that")
        return CheckpointEvery(seconds=base.every_s)
    if every.auto:
        if own and block.every_steps:
            found.refuse(where, "auto goes by no steps", "leave every_steps or auto out")
        return CheckpointEvery(auto=True, seconds=base.every_s)
    if not every.steps and every.seconds < _MIN_EVERY_S:
        found.refuse(where, "must be at least 1s", "write e.g. 5m")
    if risk := RISKS.get(every.preset):
        text = f"{every.preset}: {risk}, and an end without a notice costs half of that on average"
        found.warn(where, text, "auto saves as often as it pays")
    return every


def _routes(block: SpotdBlock, known: Collection[str] | None, found: Findings) -> tuple[str, ...]:
    if block.alerts is None:
        return ("default",) if known is None or "default" in known else ()
    for index, name in enumerate(block.alerts):
        if known is not None and name not in known:
            text = f"no route {name!r} is configured"
            found.refuse(("spotd", "alerts", index), text, suggest(name, known))
    return tuple(dict.fromkeys(block.alerts))
