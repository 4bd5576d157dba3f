"""What git ignores in a folder, as git itself says it (SkyPilot asks in the same way)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from spotd.base.errors import ExitCode, UserError

# In the environment of a hook they name the hook's repository, whatever folder one is in.
_OF_A_HOOK = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})
_OUTSIDE = (b"not a git repository", b"must be run in a work tree")


def ignored_by_git(folder: Path, warn: Callable[[str], None]) -> frozenset[str] | None:
    """The untracked files and whole folders under `folder` that git ignores, relative to it.

    Every source counts: .gitignore files above `folder`, .git/info/exclude and the user's own
    list. None where git has no say: outside a repository, in a folder that is ignored as a whole,
    or without git (`warn` is told of the last two). Raises UserError when git refuses to answer.
    """
    options = ["-z", "--others", "--ignored", "--exclude-standard", "--directory"]
    try:
        done = _git(folder, "ls-files", *options)
    except FileNotFoundError:
        if any((place / ".git").exists() for place in (folder, *folder.absolute().parents)):
            warn(f"git is not installed: in {folder} only its own .gitignore files count")
        return None
    names = frozenset(os.fsdecode(name).rstrip("/") for name in done.stdout.split(b"\0") if name)
    if done.returncode == 0 and "." not in names:
        return names
    # Deep inside an ignored folder git 2.39 fails where it should list "./".
    if done.returncode == 0 or _git(folder, "check-ignore", "-q", ".").returncode == 0:
        warn(f"git ignores all of {folder}: only the .gitignore files in it count")
        return None
    if any(text in done.stderr for text in _OUTSIDE):
        return None
    raise UserError(
        f"git does not say what it ignores in {folder}: {os.fsdecode(done.stderr).strip()}",
        f"git -C {folder} status, or list what stays behind in {folder}/.skyignore",
        ExitCode.USAGE,
    )


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    environ = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    return subprocess.run(
        ["git", "-C", str(folder), *words],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=environ | {"LC_ALL": "C"},
    )
