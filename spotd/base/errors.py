"""Errors that users see: what happened, what to try, and the exit code for scripts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `spotctl` and `spotd`."""

    OK = 0
    FAILURE = 1
    USAGE = 2  # bad input: a command line, a job file, a configuration; or nothing fits it
    NOT_FOUND = 3
    REFUSED = 4  # by a limit or a budget
    AUTH = 5
    UNREACHABLE = 6  # no daemon behind the socket
    TIMEOUT = 7  # `wait` ran out of time
    JOB_FAILED = 100
    JOB_CANCELLED = 103
    INTERRUPTED = 130


class UserError(Exception):
    """Something the user can do something about. `str()` is the whole message, advice included."""

    def __init__(self, text: str, try_: str, exit_code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(f"{text}\ntry: {try_}")
        self.text = text
        self.try_ = try_
        self.exit_code = exit_code


class UnreachableError(UserError):
    """No daemon answers."""

    def __init__(self, text: str, try_: str) -> None:
        super().__init__(text, try_, ExitCode.UNREACHABLE)


@dataclass(frozen=True)
class Problem:
    """One error in an input. `where` is a dotted key; `line` is 1-based, 0 if unknown."""

    where: str
    text: str
    fix: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        name = f"{self.where}: " if self.where else ""
        fix = f" (fix: {self.fix})" if self.fix else ""
        return f"{place}{name}{self.text}{fix}"


class InputError(UserError):
    """Everything that is wrong with one input, at once, in the order of the input."""

    def __init__(self, title: str, problems: Sequence[Problem], try_: str) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{title}{lines}", try_, ExitCode.USAGE)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that was probably meant, or ""."""
    by_fold = {name.casefold(): name for name in known}
    matches = difflib.get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[matches[0]] if matches else ""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a fix for an unknown word: the one that was probably meant, or all choices."""
    names = sorted(known)
    close = nearest(word, names)
    return f"did you mean {close!r}?" if close else f"known here: {', '.join(names) or 'none'}"
