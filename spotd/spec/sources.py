"""What a job takes along: the user's own files, as workdir and file mounts, the checkpoint that it
begins with, and caches."""

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


@dataclass(frozen=True)
class CheckpointOrigin:
    """A folder or file of the user's, or what `job` has saved as `which`: a step, a pin, or "" for
    the newest."""

    folder: FilePath | None = None
    job: str = ""
    which: str = ""


def _origin(
    block: Checkpoint, base_dir: FilePath | None, found: Findings
) -> CheckpointOrigin | None:
    """What `checkpoint.from` names: a path has a slash, a job's name has none."""
    text = block.origin
    if text is None:
        return None
    if block.engine != "spotd":
        found.refuse(
            _FROM,
            "is for programs that resume by spotd_hook",
            "add engine: spotd, or have the program read its weights itself, from file_mounts",
        )
        return None
    if "://" in text:
        found.refuse(_FROM, f"{text!r} is no path on this machine", "copy it here first")
        return None
    if "/" in text:
        return CheckpointOrigin(_local(text, base_dir, _FROM, found))
    job = _JOB.fullmatch(text)
    if job is None:
        fix = "write ./NAME for a path, or a job as gpt or gpt@STEP"
        found.refuse(_FROM, f"{text!r} is neither a path with a / nor a job", fix)
        return None
    if base_dir is not None and (base_dir / text).exists():
        found.refuse(
            _FROM, f"{text!r} reads as a job, and is here as well", f"write ./{text}, or a job's id"
        )
    return CheckpointOrigin(job=job[1], which=job[2] or "")


def read_buckets(
    file: JobFile, datasets: Collection[str] | None, found: Findings
) -> tuple[Bucket, ...]:
    """The file mounts that are copied, or mounted, on the node; `read_sources` checks where to."""
    sources = [(target, storage.source or "") for target, storage in file.file_mounts.items()]
    for target, source in sources:
        scheme, _, name = source.rstrip("/").partition("://")
        if scheme == "dataset" and datasets is not None and name not in datasets:
            known = ", ".join(sorted(datasets)) or "there is none"
            text = f"there is no data set {name!r}"
            found.refuse(("file_mounts", target), text, f"name one of [datasets]: {known}")
    return tuple(
        Bucket(
            target.rstrip("/"),
            (storage.source or "").rstrip("/"),
            mode=storage.how,
            cache_bytes=storage.config.mount_cached.vfs_cache_max_size or 0,
        )
        for target, storage in file.file_mounts.items()
        if "://" in (storage.source or "")
    )


def read_folders(
    file: JobFile, container: str, datasets: Collection[str] | None, found: Findings
) -> dict[str, Any]:
    """What a JobSpec says of buckets and of caches."""
    buckets = {"buckets": read_buckets(file, datasets, found)}
    return {**buckets, **read_caches(file.spotd, container, found)}


def read_caches(block: SpotdBlock, container: str, found: Findings) -> dict[str, Any]:
    """What a JobSpec says of caches. What the agent cannot see, in a `container`, is refused."""
    if block.cache is None:
        return {}
    kept: dict[str, PurePosixPath] = {}
    for index, text in enumerate(block.cache.paths):
        where: Path = ("spotd", "cache", "paths", index)
        path = PurePosixPath(text)
        inner = path.relative_to(path.anchor).parts
        if not inner or ".." in inner or not text.isprintable() or inner == ("~",):
            found.refuse(where, f"{text!r} is no folder of its own", "write e.g. ~/.cache/pip")
        elif inner[0].startswith("~") and inner[0] != "~":
            found.refuse(where, f"{text!r} is another user's", "write ~/ and the folder")
        elif container and (path.anchor or inner[0] == "~"):
            text_ = f"{text!r} is in the container, where the agent cannot see it"
            found.refuse(where, text_, "write one below the workdir, like cache")
        elif other := next((one for one in kept if _overlap(kept[one], path)), ""):
            found.refuse(where, f"{text!r} and {other!r} are in each other", "keep the outer one")
        else:
            kept[str(path)] = path
    own = PurePosixPath(block.checkpoint.path or "")
    if own.name and any(_overlap(path, own) for path in kept.values()):
        found.refuse(
            ("spotd", "cache", "paths"),
            "has checkpoint.path, which is kept already",
            "leave it out there",
        )
    return {"caches": tuple(kept), "cache_bytes": block.cache.size}


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def read_sources(
    file: JobFile, base_dir: FilePath | None, found: Findings
) -> tuple[FilePath | None, tuple[tuple[FilePath, str], ...], CheckpointOrigin | None]:
    """The workdir, (local path, target) of every local file mount, and what the job begins with."""
    workdir = None
    if file.workdir is not None:
        workdir = _local(file.workdir, base_dir, ("workdir",), found)
        if base_dir is not None and workdir.exists() and not workdir.is_dir():
            found.refuse(("workdir",), f"{workdir} is no folder", "name the folder around it")
    mounts: dict[str, FilePath | None] = {}
    for target, storage in file.file_mounts.items():
        path = ("file_mounts", target)
        folders = target.split("/")
        if not target.strip("/.~") or ".." in folders or "\0" in target:
            found.refuse(path, "is no possible target", "write an absolute path, or ~/folder")
        if (place := target.rstrip("/")) in mounts:
            found.refuse(path, "is the same place as another mount", "keep one of the two")
        source = storage.source or ""
        mounts[place] = None if "://" in source else _local(source, base_dir, path, found)
    origin = _origin(file.spotd.checkpoint, base_dir, found)
    return workdir, tuple((local, place) for place, local in mounts.items() if local), origin


def _local(text: str, base_dir: FilePath | None, path: Path, found: Findings) -> FilePath:
    """SkyPilot's rule: `~` is the home folder, the rest is relative to where one is."""
    if base_dir is None:
        return FilePath(text)
    if unfilled := VARIABLE.search(text):
        found.refuse(
            path, f"{unfilled[0]} has no value", f"set {unfilled[1] or unfilled[2]} in envs"
        )
        return FilePath(text)
    try:
        local = (base_dir / FilePath(text).expanduser()).absolute()
    except RuntimeError:  # `~nobody`
        found.refuse(path, f"{text!r}: no such user's home folder", "write the whole path")
        return FilePath(text)
    if not local.exists():
        found.refuse(path, f"{local} does not exist", "correct the path, or create it")
    return local
