"""Which files of a folder stay behind: `.skyignore` or else `.gitignore`, with git's rules.

A folder with a `.skyignore` at its top is judged by the `.skyignore` files in it, any other by its
`.gitignore` files (as SkyPilot does). Later lines win over earlier ones, deeper files over higher
ones, and nothing inside an ignored folder can be brought back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NAMES = (".skyignore", ".gitignore")


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
