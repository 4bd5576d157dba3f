"""The user's own files that a job takes along: workdir and file mounts."""

from __future__ import annotations

from pathlib import Path as FilePath

from spotd.spec.file import JobFile
from spotd.spec.findings import Findings
from spotd.spec.variables import VARIABLE
from spotd.validation import Path


def read_sources(
    file: JobFile, base_dir: FilePath | None, found: Findings
) -> tuple[FilePath | None, tuple[tuple[FilePath, str], ...]]:
    """The workdir, and (local path, target) of every file mount."""
    workdir = None
    if file.workdir is not None:
        workdir = _local(file.workdir, base_dir, ("workdir",), found)
        if base_dir is not None and workdir.exists() and not workdir.is_dir():
            found.refuse(("workdir",), f"{workdir} is no folder", "name the folder around it")
    mounts: dict[str, FilePath] = {}
    for target, storage in file.file_mounts.items():
        path = ("file_mounts", target)
        folders = target.split("/")
        if not target.strip("/.~") or ".." in folders or "\0" in target:
            found.refuse(path, "is no possible target", "write an absolute path, or ~/folder")
        if (place := target.rstrip("/")) in mounts:
            found.refuse(path, "is the same place as another mount", "keep one of the two")
        mounts[place] = _local(storage.source or "", base_dir, path, found)
    return workdir, tuple((local, place) for place, local in mounts.items())


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
