"""List the files that git ignores in a folder, by running git (as SkyPilot does)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from spotd.base.errors import ExitCode, UserError

# Git sets these for hooks. They would redirect git to the hook's repository.
_HOOK_VARIABLES = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})
_NOT_A_REPOSITORY = (b"not a git repository", b"must be run in a work tree")


def ignored_by_git(folder: Path, warn: Callable[[str], None]) -> frozenset[str] | None:
    """Return the untracked files and folders under `folder` that git ignores, relative to it.

    All of git's sources are used: .gitignore files above `folder`, .git/info/exclude and the user's
    own list. Returns None outside of a repository; also, with a call of `warn`, if git ignores all
    of `folder`, or is not installed. Raises UserError if git fails.
    """
    options = ["-z", "--others", "--ignored", "--exclude-standard", "--directory"]
    try:
        result = _git(folder, "ls-files", *options)
    except FileNotFoundError:
        if any((parent / ".git").exists() for parent in (folder, *folder.absolute().parents)):
            warn(f"git is not installed: in {folder} only its own .gitignore files count")
        return None
    names = frozenset(os.fsdecode(name).rstrip("/") for name in result.stdout.split(b"\0") if name)
    if result.returncode == 0 and "." not in names:
        return names
    # Deep inside an ignored folder git 2.39 fails instead of listing "./".
    if result.returncode == 0 or _git(folder, "check-ignore", "-q", ".").returncode == 0:
        warn(f"git ignores all of {folder}: only the .gitignore files in it count")
        return None
    if any(message in result.stderr for message in _NOT_A_REPOSITORY):
        return None
    raise UserError(
        f"git cannot list the files that it ignores in {folder}: "
        f"{os.fsdecode(result.stderr).strip()}",
        f"git -C {folder} status, or list what stays behind in {folder}/.skyignore",
        ExitCode.USAGE,
    )


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environ = {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environ | {"LC_ALL": "C"},
    )
