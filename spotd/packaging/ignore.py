"""Decide which files of a folder are not packed: by `.skyignore`, git, or `.gitignore` files.

If the folder has a `.skyignore` at its top, the `.skyignore` files in it decide, as in SkyPilot.
Otherwise git, which is run for it, decides inside a repository, and the folder's `.gitignore` files
outside of one. Ignore files are read as git reads them: later lines override earlier ones, deeper
files override higher ones, and nothing inside an ignored folder can be included again. `.git` is
never packed: it may hold tokens, and it changes while the files of the job do not.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotd.base.errors import ExitCode, UserError

_SKYIGNORE = ".skyignore"
NAMES = (_SKYIGNORE, ".gitignore")


@dataclass(frozen=True)
class Rule:
    """One line of an ignore file. `pattern` matches paths relative to the folder of the file.

    A `negated` rule (`!` in the file) includes what it matches.
    """

    pattern: re.Pattern[str]
    negated: bool
    folders_only: bool


def ignore_file_name(root: Path) -> str:
    """Return the name of the ignore files to use under `root`."""
    return next((name for name in NAMES if (root / name).is_file()), NAMES[-1])


def read_rules(file: Path) -> tuple[Rule, ...]:
    """Return the rules of an ignore file; none if it does not exist."""
    if not file.is_file():
        return ()
    lines = file.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    return tuple(rule for line in lines if (rule := parse_rule(line.rstrip("\r"))) is not None)


def parse_rule(line: str) -> Rule | None:
    """Parse one line of an ignore file; None for blank lines, comments and invalid patterns."""
    text = re.sub(r"(?<!\\) +$", "", line)
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text.removeprefix("!") if negated else text
    folders_only = text.endswith("/")
    text = text.rstrip("/") if folders_only else text
    if not text.strip("/"):
        return None
    anchored = "/" in text
    try:
        pattern = re.compile(
            ("" if anchored else "(?:.*/)?") + _translate(text.removeprefix("/")), re.DOTALL
        )
    except re.error:
        return None  # an unfinished [class] matches nothing in git either
    return Rule(pattern, negated, folders_only)


def _translate(glob: str) -> str:
    result, index = "", 0
    while index < len(glob):
        rest = glob[index:]
        starts = index == 0 or glob[index - 1] == "/"
        if starts and rest.startswith("**/"):
            result, index = result + "(?:.*/)?", index + 3
        elif starts and rest == "**":
            result, index = result + ".+", index + 2
        elif rest[0] == "*":
            stars = len(rest) - len(rest.lstrip("*"))
            result, index = result + "[^/]*", index + stars
        elif rest[0] == "?":
            result, index = result + "[^/]", index + 1
        elif rest[0] == "[":
            regex, length = _translate_class(rest)
            result, index = result + regex, index + length
        elif rest[0] == "\\" and len(rest) > 1:
            result, index = result + re.escape(rest[1]), index + 2
        else:
            result, index = result + re.escape(rest[0]), index + 1
    return result


def _translate_class(rest: str) -> tuple[str, int]:
    """Translate the `[...]` at the start of `rest` to a regular expression; also its length."""
    end = rest.find("]", 3 if rest[1:2] in ("!", "^") else 2)
    if end < 0:
        raise re.error("unfinished class")
    body = rest[1:end]
    negated = body[:1] in ("!", "^")
    inner = re.sub(r"([\[&~|])", r"\\\1", body[1:] if negated else body)
    inner = inner.replace("]", r"\]") if inner.startswith("]") else inner
    return f"(?!/)[{'^' if negated else ''}{inner}]", end + 1


def is_ignored(path: str, is_folder: bool, levels: Sequence[tuple[str, Sequence[Rule]]]) -> bool:
    """Return whether `path` is ignored. Paths are relative to the root.

    `levels` are (folder, rules) of the folders above it, the root first; a folder ends with "/",
    and the root is "".
    """
    for base, rules in reversed(levels):
        relative = path[len(base) :]
        for rule in reversed(rules):
            if rule.folders_only and not is_folder:
                continue
            if rule.pattern.fullmatch(relative):
                return not rule.negated
    return False


@dataclass(frozen=True)
class Filter:
    """The rules for the entries of one folder. Names are relative to the root.

    `git_ignored` are the names that git ignores, None outside of a repository. `levels` are the
    rules of the files named `ignore_file`, down to the first repository.
    """

    ignore_file: str
    levels: tuple[tuple[str, tuple[Rule, ...]], ...] = ()
    git_ignored: frozenset[str] | None = None

    def for_folder(self, folder: Path, prefix: str, warn: Callable[[str], None]) -> Filter:
        """Return the filter for the subfolder `folder`. A nested repository adds its own rules."""
        git_ignored = self.git_ignored
        if self.ignore_file != _SKYIGNORE and (not prefix or (folder / ".git").exists()):
            names = ignored_by_git(folder, warn)
            if names is not None:
                git_ignored = (git_ignored or frozenset()) | {prefix + name for name in names}
        if git_ignored is not None:
            return replace(self, git_ignored=git_ignored)
        levels = (*self.levels, (prefix, read_rules(folder / self.ignore_file)))
        return replace(self, levels=levels)

    def excludes(self, name: str, is_folder: bool) -> bool:
        """Return whether one entry of the folder is not packed."""
        if name.rpartition("/")[2] == ".git" or name in (self.git_ignored or ()):
            return True
        return is_ignored(name, is_folder, self.levels)


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
