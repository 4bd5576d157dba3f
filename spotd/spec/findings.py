"""Problems and warnings found while reading a job file."""

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

    def located(self, document: Document) -> list[Problem]:
        """Problems with their lines, without those that follow from another of the same key."""
        kept: dict[Path, Problem] = {}
        for path, problem in self.problems:
            if not any(path[: len(other)] == other for other in kept):
                kept[path] = replace(problem, line=document.line(path))
        return list(kept.values())

    def sentences(self, document: Document) -> Iterator[str]:
        """Warnings for the user, in the order of the file."""
        placed = [(document.line(path), problem) for path, problem in self.warnings]
        for line, problem in sorted(placed, key=lambda item: item[0]):
            place = f"line {line}: " if line else ""
            fix = f" ({problem.fix})" if problem.fix else ""
            yield f"{place}{problem.where} {problem.text}{fix}"
