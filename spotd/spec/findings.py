"""Collect the problems and warnings found while reading a job file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from spotd.base.errors import Problem
from spotd.base.validation import Path, key_text
from spotd.spec.document import Document


@dataclass
class Findings:
    """Problems and warnings, each with the path of its key."""

    problems: list[tuple[Path, Problem]] = field(default_factory=list)
    warnings: list[tuple[Path, Problem]] = field(default_factory=list)

    def refuse(self, path: Path, text: str, fix: str = "") -> None:
        self.problems.append((path, Problem(key_text(path), text, fix)))

    def warn(self, path: Path, text: str, fix: str = "") -> None:
        self.warnings.append((path, Problem(key_text(path), text, fix)))

    def problems_with_lines(self, document: Document) -> list[Problem]:
        """Return the problems with their line numbers, one for each key.

        A later problem of the same key, or of a key below it, is left out as a consequence.
        """
        located: dict[Path, Problem] = {}
        for path, problem in self.problems:
            if not any(path[: len(reported)] == reported for reported in located):
                located[path] = replace(problem, line=document.line(path))
        return list(located.values())

    def warning_texts(self, document: Document) -> Iterator[str]:
        """Yield the warnings as text for the user, in the order of the file."""
        numbered = [(document.line(path), problem) for path, problem in self.warnings]
        for line, problem in sorted(numbered, key=lambda item: item[0]):
            prefix = f"line {line}: " if line else ""
            fix = f" ({problem.fix})" if problem.fix else ""
            yield f"{prefix}{problem.where} {problem.text}{fix}"
