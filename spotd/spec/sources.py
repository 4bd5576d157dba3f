"""Read the places of a job's data: workdir, file mounts, initial checkpoint, caches, outputs."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path as FilePath
from pathlib import PurePosixPath
from typing import Any

from spotd.base.validation import Path
from spotd.spec.file import Checkpoint, JobFile, SpotdBlock
from spotd.spec.findings import Findings
from spotd.spec.variables import VARIABLE
from spotd.wire import Bucket

_JOB = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62})(?:@([A-Za-z0-9._-]{1,63}))?")
_FROM: Path = ("spotd", "checkpoint", "from")
_ROOTS = (("/",), ("~",))


@dataclass(frozen=True)
class CheckpointOrigin:
    """The initial checkpoint: a local folder or file, or one saved by `job`.

    `which` is a step, the name of a pin, or "" for the newest.
    """

    folder: FilePath | None = None
    job: str = ""
    which: str = ""


def _origin(
    block: Checkpoint, base_dir: FilePath | None, findings: Findings
) -> CheckpointOrigin | None:
    """Read `checkpoint.from`: text with a slash is a path, other text is a job."""
    origin = block.origin
    if origin is None:
        return None
    if block.engine != "spotd":
        findings.refuse(
            _FROM,
            "applies only to programs that resume with spotd_hook",
            "add engine: spotd, or let the program read its weights from file_mounts",
        )
        return None
    if "://" in origin:
        findings.refuse(_FROM, f"{origin!r} is not a path on this machine", "copy it here first")
        return None
    if "/" in origin:
        return CheckpointOrigin(_local(origin, base_dir, _FROM, findings))
    match = _JOB.fullmatch(origin)
    if match is None:
        fix = "write ./NAME for a path, or a job as gpt or gpt@STEP"
        findings.refuse(_FROM, f"{origin!r} is neither a path with a / nor a job", fix)
        return None
    if base_dir is not None and (base_dir / origin).exists():
        findings.refuse(
            _FROM,
            f"{origin!r} could be a job, and is also a path here",
            f"write ./{origin}, or a job's id",
        )
    return CheckpointOrigin(job=match[1], which=match[2] or "")


def read_buckets(
    file: JobFile, datasets: Collection[str] | None, findings: Findings
) -> tuple[Bucket, ...]:
    """Return the file mounts that come from buckets; `read_sources` checks their targets."""
    sources = [(target, storage.source or "") for target, storage in file.file_mounts.items()]
    for target, source in sources:
        scheme, _, name = source.rstrip("/").partition("://")
        if scheme == "dataset" and datasets is not None and name not in datasets:
            known = ", ".join(sorted(datasets)) or "there is none"
            message = f"there is no data set {name!r}"
            findings.refuse(("file_mounts", target), message, f"name one of [datasets]: {known}")
    return tuple(
        Bucket(
            target.rstrip("/"),
            (storage.source or "").rstrip("/"),
            mode=storage.mount_mode,
            cache_bytes=storage.config.mount_cached.vfs_cache_max_size or 0,
        )
        for target, storage in file.file_mounts.items()
        if "://" in (storage.source or "")
    )


def read_folders(
    file: JobFile, container: str, datasets: Collection[str] | None, findings: Findings
) -> dict[str, Any]:
    """Return the JobSpec fields of buckets, caches and outputs."""
    return {
        "buckets": read_buckets(file, datasets, findings),
        "outputs": read_outputs(file.spotd, container, findings),
        **read_caches(file.spotd, container, findings),
    }


def read_outputs(block: SpotdBlock, container: str, findings: Findings) -> tuple[str, ...] | None:
    """Return the patterns of files to upload at the end; None if the job file has none.

    With a `container` image, patterns outside of the workdir are refused, because the agent cannot
    read those files.
    """
    if block.outputs is None:
        return None
    for index, pattern in enumerate(block.outputs):
        key: Path = ("spotd", "outputs", index)
        parts = PurePosixPath(pattern).parts
        outside = pattern.startswith(("/", "~"))
        if "://" in pattern or not pattern.isprintable() or ".." in parts or parts in _ROOTS:
            message = f"{pattern!r} is not a path on the machine"
            findings.refuse(key, message, "write a folder or files below the workdir, like results")
        elif any("**" in part and part != "**" for part in parts):
            findings.refuse(key, f"{pattern!r} has ** beside other letters", "write a/**/*.bin")
        elif pattern.startswith("~") and parts[0] != "~":
            findings.refuse(key, f"{pattern!r} belongs to another user", "write ~/ and the path")
        elif container and outside:
            message = f"{pattern!r} is in the container, where the agent cannot see it"
            findings.refuse(key, message, "write one below the workdir, like results")
    return tuple(dict.fromkeys(block.outputs))


def read_caches(block: SpotdBlock, container: str, findings: Findings) -> dict[str, Any]:
    """Return the JobSpec fields of caches.

    With a `container` image, folders that exist only in the container are refused, because the
    agent cannot read them.
    """
    if block.cache is None:
        return {}
    paths: dict[str, PurePosixPath] = {}
    for index, written in enumerate(block.cache.paths):
        key: Path = ("spotd", "cache", "paths", index)
        path = PurePosixPath(written)
        inner = path.relative_to(path.anchor).parts
        if not inner or ".." in inner or not written.isprintable() or inner == ("~",):
            findings.refuse(key, f"{written!r} is not a separate folder", "write e.g. ~/.cache/pip")
        elif inner[0].startswith("~") and inner[0] != "~":
            findings.refuse(key, f"{written!r} belongs to another user", "write ~/ and the folder")
        elif container and (path.anchor or inner[0] == "~"):
            message = f"{written!r} is in the container, where the agent cannot see it"
            findings.refuse(key, message, "write one below the workdir, like cache")
        elif outer := next((name for name in paths if _overlap(paths[name], path)), ""):
            findings.refuse(key, f"{outer!r} contains {written!r}", "keep the outer one")
        else:
            paths[str(path)] = path
    checkpoint_path = PurePosixPath(block.checkpoint.path or "")
    if checkpoint_path.name and any(_overlap(path, checkpoint_path) for path in paths.values()):
        findings.refuse(
            ("spotd", "cache", "paths"),
            "contains checkpoint.path, which is stored already",
            "remove checkpoint.path from it",
        )
    return {"caches": tuple(paths), "cache_bytes": block.cache.size}


def _overlap(first: PurePosixPath, second: PurePosixPath) -> bool:
    return first.is_relative_to(second) or second.is_relative_to(first)


def read_sources(
    file: JobFile, base_dir: FilePath | None, findings: Findings
) -> tuple[FilePath | None, tuple[tuple[FilePath, str], ...], CheckpointOrigin | None]:
    """Return the workdir, (local path, target) of every local mount, and the initial checkpoint."""
    workdir = None
    if file.workdir is not None:
        workdir = _local(file.workdir, base_dir, ("workdir",), findings)
        if base_dir is not None and workdir.exists() and not workdir.is_dir():
            findings.refuse(("workdir",), f"{workdir} is not a folder", "name its parent folder")
    mounts: dict[str, FilePath | None] = {}
    for target, storage in file.file_mounts.items():
        key = ("file_mounts", target)
        folders = target.split("/")
        if not target.strip("/.~") or ".." in folders or "\0" in target:
            findings.refuse(key, "is not a valid target", "write an absolute path, or ~/folder")
        if (node_path := target.rstrip("/")) in mounts:
            findings.refuse(key, "is the target of another mount", "keep one of the two")
        source = storage.source or ""
        mounts[node_path] = None if "://" in source else _local(source, base_dir, key, findings)
    origin = _origin(file.spotd.checkpoint, base_dir, findings)
    return (
        workdir,
        tuple((local, node_path) for node_path, local in mounts.items() if local),
        origin,
    )


def _local(written: str, base_dir: FilePath | None, key: Path, findings: Findings) -> FilePath:
    """Resolve a local path as SkyPilot does: `~` is the home folder, others start at `base_dir`."""
    if base_dir is None:
        return FilePath(written)
    if variable := VARIABLE.search(written):
        findings.refuse(
            key, f"{variable[0]} has no value", f"set {variable[1] or variable[2]} in envs"
        )
        return FilePath(written)
    try:
        local = (base_dir / FilePath(written).expanduser()).absolute()
    except RuntimeError:  # `~nobody`
        findings.refuse(key, f"{written!r}: no such user's home folder", "write the whole path")
        return FilePath(written)
    if not local.exists():
        findings.refuse(key, f"{local} does not exist", "correct the path, or create it")
    return local
