"""Load a job file into a JobSpec, reporting all its problems at once."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from pathlib import PurePosixPath
from typing import Any

from spotd.base.errors import suggest
from spotd.base.validation import validate_partly
from spotd.domain.container import container_of
from spotd.domain.fast_replace import changed
from spotd.domain.health import HealthSpec
from spotd.domain.job import (
    CheckpointSpec,
    JobLimits,
    JobMonitoring,
    JobProgram,
    JobResources,
    JobSpec,
    QueueSpec,
    RestartPolicy,
)
from spotd.domain.queue import NORMAL
from spotd.spec.block import Ignored
from spotd.spec.budget import read_caps
from spotd.spec.checkpoint_every import RISKS, CheckpointEvery
from spotd.spec.document import SpecError, parse
from spotd.spec.file import Checkpoint, JobFile, SpotdBlock
from spotd.spec.findings import Findings
from spotd.spec.gangs import peer_timeout_s, read_elastic
from spotd.spec.machine_request import MachineRequest, apply_capacity, read_resources
from spotd.spec.model import check_model
from spotd.spec.preferences import apply_preferences
from spotd.spec.quantities import parse_moment_us
from spotd.spec.sources import CheckpointOrigin, read_folders, read_sources
from spotd.spec.variables import check_login, read_environment, read_secrets, substitute

_SUBSTITUTED = frozenset({"workdir", "file_mounts"})
_MIN_EVERY_S = 1.0
FALLBACK_S = 300.0  # checkpoint interval where none is configured and auto is not possible
# By engine. With engine spotd a stop waits for the final save, so that paid steps are not lost;
# other scripts get the usual 30 s.
_STOP_GRACE_S = {"spotd": 300.0, "none": 30.0}


@dataclass(frozen=True)
class CheckpointDefaults:
    """`[checkpoint]` of the configuration.

    `store` is "" if none is configured. `every_s` is used if `every` is None.
    """

    store: str = ""
    every_s: float = FALLBACK_S
    keep: int = 3
    every: CheckpointEvery | None = None


@dataclass(frozen=True)
class KnownNames:
    """Configured names that a job file may refer to.

    None means not known: the user's machine has no access to the daemon's configuration.
    """

    clouds: Collection[str] | None = None  # names and kinds of the configured providers
    routes: Collection[str] | None = None  # alert routes
    secrets: Collection[str] | None = None  # secrets stored with `spotctl secret set`
    datasets: Collection[str] | None = None  # [datasets] of the configuration


@dataclass(frozen=True)
class ParsedJobFile:
    """The result of `load`.

    `spec` has no packages yet. `workdir` and the local paths of `mounts` are absolute and exist if
    `base_dir` was passed, otherwise they are as written. `secrets` maps names to the values passed
    with the file, and `text` is the file without these values. `spec.program.secrets` names also
    the secrets that the daemon adds from its store when the job starts. `warnings` are complete
    texts for the user.
    """

    spec: JobSpec
    workdir: FilePath | None
    mounts: tuple[tuple[FilePath, str], ...]
    warnings: tuple[str, ...]
    secrets: Mapping[str, str] = field(repr=False)
    text: str = field(repr=False)
    origin: CheckpointOrigin | None = None  # the checkpoint to import before the job is submitted


def load(  # noqa: PLR0913 - independent options, all by keyword
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
    """Parse and check one job file. Raises SpecError with every problem in it.

    `now_us` is the time from which a relative deadline counts. `env` and `secrets` replace or add
    values (`--env`, `--secret`). `defaults` None means that the configuration is not available; a
    missing store is then left empty. `base_dir` is the folder that relative local paths start from
    (SkyPilot: the current directory); with None, local paths are not checked. `fallback_name` is
    used for a file without `name`. With `bake` an image is built from `setup` alone: `run` and the
    store may be missing, and a container image is an error.

    `$NAME` and `${NAME}` of `envs` are substituted in `workdir` and `file_mounts` (keys and values)
    and nowhere else, as in SkyPilot. Secrets are never substituted.
    """
    document = parse(text)
    findings = Findings()
    # Substitute before validation, so that the values that will be used are the ones checked.
    environment = read_environment(document, env or {}, findings)
    data = {str(key): value for key, value in copy.deepcopy(document.data).items()}
    data |= {key: substitute(data[key], environment) for key in _SUBSTITUTED & data.keys()}
    file, model_problems = validate_partly(JobFile, data)
    findings.problems += model_problems
    known = known or KnownNames()
    secret_values, stored_names = read_secrets(
        file, secrets or {}, environment, known.secrets, findings
    )
    check_login(environment, {*secret_values, *stored_names}, findings)
    _report_marked_keys(file, findings)
    request = read_resources(file.resources, known.clouds, findings, ("resources",))
    request = apply_preferences(apply_capacity(request, file, findings), file, findings)
    spec = _spec(file, request, None if bake else defaults, now_us, findings)
    _check_run(file, request, findings, bake=bake)
    spec = changed(
        spec,
        name=_job_name(file, fallback_name, findings),
        envs=environment,
        secrets=tuple(sorted({*secret_values, *stored_names})),
        alerts=_routes(file.spotd, known.routes, findings),
        caps=read_caps(file.spotd.budget, known.routes, findings),
        **read_folders(file, container_of(request.image_id), known.datasets, findings),
    )
    _check_directory(file, request, findings)
    workdir, mounts, origin = read_sources(file, base_dir, findings)
    if findings.problems:
        raise SpecError(*findings.problems_with_lines(document))
    warnings = tuple(findings.warning_texts(document))
    text = document.without_values("secrets")
    return ParsedJobFile(
        spec, workdir, mounts, warnings, secrets=secret_values, text=text, origin=origin
    )


def _report_marked_keys(file: JobFile, findings: Findings) -> None:
    """Report SkyPilot keys that spotd does not support."""
    for path, mark in file.marked_keys():
        if isinstance(mark, Ignored):
            findings.warn(
                path, "is a SkyPilot key that spotd does not support; it is ignored", mark.reason
            )
        else:
            findings.refuse(path, "is a SkyPilot key that spotd does not support", mark.fix)


def _check_run(file: JobFile, request: MachineRequest, findings: Findings, *, bake: bool) -> None:
    """Check that there is a command to run, or with `bake` a setup to build an image from."""
    if not bake and not file.run.strip():
        findings.refuse(("run",), "is missing", "write the command that trains")
    if bake and not file.setup.strip():
        findings.refuse(("setup",), "is empty: there is nothing to bake", "write what to install")
    if bake and container_of(request.image_id):
        text = "names a container image, which cannot become a machine image"
        findings.refuse(
            ("resources", "image_id"), text, "build a container image that has setup done"
        )


def _job_name(file: JobFile, fallback: str, findings: Findings) -> str:
    if file.name:
        return file.name
    # Fall back to the file's name, with all characters replaced that a job's name may not have.
    name = re.sub(r"[^A-Za-z0-9]+", "-", fallback)[:63].strip("-")
    if not name:
        findings.refuse(("name",), "is missing", "name the job")
    return name


def _spec(
    file: JobFile,
    request: MachineRequest,
    defaults: CheckpointDefaults | None,
    now_us: int,
    findings: Findings,
) -> JobSpec:
    block = file.spotd
    restarts, codes = block.max_restarts_on_errors, block.recover_on_exit_codes
    restarts = request.restarts if restarts is None else restarts
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
            findings.refuse(("spotd", name), "must be more than 0", "write a duration like 10m")
    if block.slow_network and file.num_nodes == 1:
        findings.warn(("spotd", "slow_network"), "has no effect on one machine: num_nodes is 1")
    check_model(block.model, findings)
    health = HealthSpec(block.health.ratio, block.health.checks, block.health.every)
    if health.check_every_s < 1:
        findings.refuse(("spotd", "health", "every"), "must be at least 1s", "30s is the default")
    spec = JobSpec(
        name="",
        program=JobProgram(run=file.run, setup=file.setup),
        resources=_resources(file, request, findings),
        limits=JobLimits(
            max_hourly_microusd=request.max_hourly_microusd,
            max_cost_microusd=block.budget.max_cost_usd or 0,
            deadline_us=_deadline_us(block, now_us, findings),
        ),
        restarts=RestartPolicy(
            recover_on_exit_codes=(request.exit_codes or ()) if codes is None else tuple(codes),
        ),
        preferences=request.preferences,
        queue=QueueSpec(
            project=block.project or "", after=block.after or "", priority=_priority(file)
        ),
        monitoring=JobMonitoring(health=health),
        checkpoint=_checkpoint(block.checkpoint, defaults, findings),
    )
    chosen: dict[str, Any] = {**times, "max_restarts_on_errors": restarts}
    return changed(spec, **{name: value for name, value in chosen.items() if value is not None})


def _resources(file: JobFile, request: MachineRequest, findings: Findings) -> JobResources:
    return JobResources(
        alternatives=request.alternatives,
        ordered=request.ordered,
        capacity_ordered=request.capacity_ordered,
        num_nodes=file.num_nodes,
        candidates=file.spotd.candidates,
        fast_network=file.num_nodes > 1 and not file.spotd.slow_network,
        elastic=read_elastic(file, findings),
        image_id=request.image_id,
        disk_gib=request.disk_gib,
    )


def _priority(file: JobFile) -> int:
    """Return the priority, 0 to 1000. SkyPilot's, -1000 to 1000 with default 0, is scaled."""
    if file.spotd.priority is not None:
        return file.spotd.priority
    top = file.resources
    kinds = (top, *(top.any_of or ()), *(top.ordered or ()))
    named = next((kind.priority for kind in kinds if kind.priority is not None), None)
    return NORMAL if named is None else (named + 1000) // 2


def _deadline_us(block: SpotdBlock, now_us: int, findings: Findings) -> int:
    if not block.deadline:
        return 0
    try:
        return parse_moment_us(block.deadline, now_us)
    except ValueError as error:
        text, _, fix = str(error).partition("; ")
        findings.refuse(("spotd", "deadline"), text, fix)
        return 0


def _checkpoint(
    block: Checkpoint, defaults: CheckpointDefaults | None, findings: Findings
) -> CheckpointSpec:
    base = defaults or CheckpointDefaults()
    store = block.store or base.store
    if not store and defaults is not None:
        findings.refuse(
            ("spotd", "checkpoint", "store"),
            "the job has no store for checkpoints, neither here nor in the configuration",
            "set spotd.checkpoint.store here, or [checkpoint] store in config.toml for all jobs",
        )
    keep = base.keep if block.keep is None else block.keep
    every = _every(block, base, findings)
    return CheckpointSpec(
        store,
        block.engine,
        every.steps or block.every_steps,
        every.seconds,
        keep,
        auto=every.auto,
        size_bytes=block.size or 0,
        keep_every_steps=_keep_every(block, findings),
        directory=_directory(block, findings),
        include=tuple(block.include),
        exclude=tuple(block.exclude),
        shards=tuple(dict.fromkeys(block.shards or [store])) if block.shards is not None else (),
    )


def _check_directory(file: JobFile, request: MachineRequest, findings: Findings) -> None:
    """Check that the agent can read the whole folder of checkpoints."""
    block = file.spotd.checkpoint
    if block.mode is None:
        return
    if file.num_nodes > 1:
        text = "works on one machine only, but num_nodes is more"
        findings.refuse(
            ("spotd", "checkpoint", "mode"), text, "save with spotd_hook: engine: spotd"
        )
    if block.path and block.path.startswith("/") and container_of(request.image_id):
        text = f"{block.path!r} is in the container, where the agent cannot see it"
        findings.refuse(
            ("spotd", "checkpoint", "path"), text, "write one below the workdir, like out"
        )


def _directory(block: Checkpoint, findings: Findings) -> str:
    """Return the folder that the agent copies to the store, or "" for none."""
    mode, path = (("spotd", "checkpoint", name) for name in ("mode", "path"))
    if block.mode is None:
        for name in ("path", "include", "exclude"):
            if getattr(block, name):
                findings.refuse(
                    ("spotd", "checkpoint", name),
                    "needs mode: directory",
                    f"add that, or leave {name} out",
                )
        return ""
    if block.engine != "none":
        text = "applies only to programs that do not save with spotd_hook"
        findings.refuse(mode, text, "remove mode and path, or engine: spotd")
    if block.path is None:
        findings.refuse(mode, "needs a folder", "add path: out, where the program saves")
        return ""
    parts = PurePosixPath(block.path).parts
    if not parts or ".." in parts or parts[0].startswith("~"):
        text = f"{block.path!r} is not a folder of checkpoints"
        findings.refuse(path, text, "write one below the workdir, like out, or an absolute one")
        return ""
    return block.path


def _keep_every(block: Checkpoint, findings: Findings) -> int:
    if block.keep_every and block.engine == "none" and block.mode is None:
        where = ("spotd", "checkpoint", "keep_every")
        text = "applies to checkpoints, but spotd stores none with engine: none"
        findings.refuse(
            where, text, "leave it out, or write engine: spotd if the program uses that"
        )
    return block.keep_every


def _every(block: Checkpoint, base: CheckpointDefaults, findings: Findings) -> CheckpointEvery:
    """Return the job's checkpoint interval.

    With `auto`, `seconds` is set as well for agents of older versions, which do not know `auto`.
    """
    where, job_every = ("spotd", "checkpoint", "every"), block.every
    every = job_every or base.every or CheckpointEvery(seconds=base.every_s)
    if job_every and job_every.steps and block.every_steps:
        findings.refuse(where, "gives steps, and every_steps does too", "leave one of them out")
    if every.auto and block.every_steps and job_every is None:
        return CheckpointEvery(seconds=base.every_s)
    if every.auto and block.engine == "none":
        if job_every:
            text = "auto needs measured saves, but spotd measures none with engine: none"
            findings.refuse(where, text, "write a time like 5m, or engine: spotd if it uses that")
        return CheckpointEvery(seconds=base.every_s)
    if every.auto:
        if job_every and block.every_steps:
            findings.refuse(where, "auto does not use steps", "leave every_steps or auto out")
        return CheckpointEvery(auto=True, seconds=base.every_s)
    if not every.steps and every.seconds < _MIN_EVERY_S:
        findings.refuse(where, "must be at least 1s", "write e.g. 5m")
    if risk := RISKS.get(every.preset):
        text = f"{every.preset}: {risk}; a loss without notice costs half of that on average"
        findings.warn(where, text, "auto chooses the interval that costs least")
    return every


def _routes(
    block: SpotdBlock, known: Collection[str] | None, findings: Findings
) -> tuple[str, ...]:
    if block.alerts is None:
        return ("default",) if known is None or "default" in known else ()
    for index, name in enumerate(block.alerts):
        if known is not None and name not in known:
            text = f"no route {name!r} is configured"
            findings.refuse(("spotd", "alerts", index), text, suggest(name, known))
    return tuple(dict.fromkeys(block.alerts))
