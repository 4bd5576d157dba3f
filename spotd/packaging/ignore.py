"""Which files of a folder stay behind: by `.skyignore`, else by git, else by `.gitignore`.

A folder with a `.skyignore` at its top is judged by the `.skyignore` files in it (as SkyPilot
does), any other by git where it is in a repository, and by its `.gitignore` files where it is not.
Our own reading of such files follows git's: later lines win over earlier ones, deeper files over
higher ones, and nothing inside an ignored folder can be brought back. `.git` always stays behind:
it may hold tokens, and changes when nothing that a job sees has changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotd.packaging.git_ignore import ignored_by_git

_SKYIGNORE = ".skyignore"
NAMES = (_SKYIGNORE, ".gitignore")


@dataclass(frozen=True)
class Rule:
    """One line. `pattern` matches a path relative to the folder of its file."""

    pattern: re.Pattern[str]
    keep: bool
    folders_only: bool


def file_name(root: Path) -> str:
    """The name of the ignore files that count under `root`."""
    return next((name for name in NAMES if (root / name).is_file()), NAMES[-1])


def read_rules(file: Path) -> tuple[Rule, ...]:
    """The rules of one ignore file; none when there is no such file."""
    if not file.is_file():
        return ()
    lines = file.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    return tuple(rule for line in lines if (rule := parse_rule(line.rstrip("\r"))) is not None)


def parse_rule(line: str) -> Rule | None:
    """One line of an ignore file; None for blank lines, comments and what can match nothing."""
    text = re.sub(r"(?<!\\) +$", "", line)
    if not text or text.startswith("#"):
        return None
    keep = text.startswith("!")
    text = text.removeprefix("!") if keep else text
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
    return Rule(pattern, keep, folders_only)


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
            text, used = _translate_class(rest)
            result, index = result + text, index + used
        elif rest[0] == "\\" and len(rest) > 1:
            result, index = result + re.escape(rest[1]), index + 2
        else:
            result, index = result + re.escape(rest[0]), index + 1
    return result


def _translate_class(rest: str) -> tuple[str, int]:
    """A `[...]` at the start of `rest` as a regular expression, and how long it is."""
    end = rest.find("]", 3 if rest[1:2] in ("!", "^") else 2)
    if end < 0:
        raise re.error("unfinished class")
    body = rest[1:end]
    negated = body[:1] in ("!", "^")
    inner = re.sub(r"([\[&~|])", r"\\\1", body[1:] if negated else body)
    inner = inner.replace("]", r"\]") if inner.startswith("]") else inner
    return f"(?!/)[{'^' if negated else ''}{inner}]", end + 1


def ignored(path: str, is_folder: bool, levels: Sequence[tuple[str, Sequence[Rule]]]) -> bool:
    """Whether `path` (relative to the root, `/` between parts) stays behind. `levels` are the rules
    of the folders above it, the root first: (folder with a `/` at its end, or "" ; rules)."""
    for base, rules in reversed(levels):
        relative = path[len(base) :]
        for rule in reversed(rules):
            if rule.folders_only and not is_folder:
                continue
            if rule.pattern.fullmatch(relative):
                return not rule.keep
    return False


@dataclass(frozen=True)
class Filter:
    """What stays behind under one folder. Names are relative to the root, as in `ignored`.

    `by_git` is what git ignores, None outside of a repository. `levels` are our own reading of the
    files called `rules_name`, down to the first repository.
    """

    rules_name: str
    levels: tuple[tuple[str, tuple[Rule, ...]], ...] = ()
    by_git: frozenset[str] | None = None

    def enter(self, folder: Path, prefix: str, warn: Callable[[str], None]) -> Filter:
        """The filter for `folder`: a repository in a repository (a submodule) has its own say."""
        by_git = self.by_git
        if self.rules_name != _SKYIGNORE and (not prefix or (folder / ".git").exists()):
            names = ignored_by_git(folder, warn)
            if names is not None:
                by_git = (by_git or frozenset()) | {prefix + name for name in names}
        if by_git is not None:
            return replace(self, by_git=by_git)
        levels = (*self.levels, (prefix, read_rules(folder / self.rules_name)))
        return replace(self, levels=levels)

    def leaves_behind(self, name: str, is_folder: bool) -> bool:
        """Whether one entry of the folder stays behind."""
        if name.rpartition("/")[2] == ".git" or name in (self.by_git or ()):
            return True
        return ignored(name, is_folder, self.levels)
