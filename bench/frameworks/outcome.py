"""The outcomes of the runs: what differed, the rows by framework and kind, and their file."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.frameworks.preemptions import KINDS


@dataclass(frozen=True)
class Outcome:
    """One run that lost its machines, compared with the undisturbed one of the same seed.

    `differs` names what was not equal, `first` says where; `failed` is set instead if the program
    did not end as it has to. `whole` is a digest of the undisturbed run's result.
    """

    framework: str
    version: str
    kind: str
    seed: int
    ends: tuple[str, ...]
    differs: tuple[str, ...] = ()
    first: str = ""
    failed: str = ""
    whole: str = ""
    took_s: float = 0.0

    @property
    def equal(self) -> bool:
        return not self.differs and not self.failed


def compare(whole: Mapping[str, Any], parts: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the names of what differs, and the first difference in each as text."""
    names = sorted(whole.keys() | parts.keys())
    differs = tuple(name for name in names if _text(whole.get(name)) != _text(parts.get(name)))
    firsts = (next(differences(name, whole.get(name), parts.get(name))) for name in differs)
    return differs, "\n".join(firsts)


def differences(where: str, whole: Any, parts: Any) -> Iterator[str]:
    """Yield the places at which two results differ."""
    if isinstance(whole, dict) and isinstance(parts, dict):
        for name in sorted(whole.keys() | parts.keys()):
            yield from differences(f"{where}.{name}", whole.get(name), parts.get(name))
    elif isinstance(whole, list) and isinstance(parts, list) and len(whole) == len(parts):
        for number, (one, other) in enumerate(zip(whole, parts, strict=True)):
            yield from differences(f"{where}[{number}]", one, other)
    elif _text(whole) != _text(parts):
        yield f"{where}: {_text(whole)[:300]} undisturbed, {_text(parts)[:300]} preempted"


def digest(result: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(result).encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class Book:
    """The outcomes so far, kept in a file after each run."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._lock = path, threading.Lock()
        self.outcomes: list[Outcome] = []
        if path is not None and path.exists():
            for row in json.loads(path.read_text())["runs"]:
                row["ends"], row["differs"] = tuple(row["ends"]), tuple(row["differs"])
                self.outcomes.append(Outcome(**row))

    def has(self, framework: str, kind: str, seed: int) -> bool:
        """Whether this run is on record, and did not fail."""
        return any(
            (one.framework, one.kind, one.seed) == (framework, kind, seed) and not one.failed
            for one in self.outcomes
        )

    def add(self, outcome: Outcome) -> None:
        key = (outcome.framework, outcome.kind, outcome.seed)
        with self._lock:
            self.outcomes = [
                one for one in self.outcomes if (one.framework, one.kind, one.seed) != key
            ]
            self.outcomes.append(outcome)
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                new = self._path.with_suffix(".new")
                data = {
                    "rows": rows(self.outcomes),
                    "runs": [asdict(one) for one in self.outcomes],
                }
                new.write_text(json.dumps(data, indent=1))
                new.rename(self._path)


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return a row for each framework and kind: its runs, those that are equal, and the others."""
    found = []
    for name in dict.fromkeys(one.framework for one in outcomes):
        for kind in KINDS:
            runs = [one for one in outcomes if (one.framework, one.kind) == (name, kind)]
            if not runs:
                continue
            equal = sum(one.equal for one in runs)
            found.append(
                {
                    "framework": name,
                    "version": runs[-1].version,
                    "kind": kind,
                    "runs": len(runs),
                    "equal": equal,
                    "share": equal / len(runs),
                    "unequal": [
                        {"seed": one.seed, "differs": one.differs or (f"failed: {one.failed}",)}
                        for one in sorted(runs, key=lambda run: run.seed)
                        if not one.equal
                    ],
                }
            )
    return found


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the rows as Markdown."""
    yield "| framework | version | notice | runs | equal | share | not equal |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows(outcomes):
        unequal = "; ".join(
            f"seed {one['seed']}: {' '.join(', '.join(one['differs']).split())[:200]}"
            for one in row["unequal"]
        )
        notice = "yes" if row["kind"] == KINDS[0] else "no"
        cells = (row["framework"], row["version"], notice, row["runs"], row["equal"])
        yield f"| {' | '.join(map(str, cells))} | {row['share']:.0%} | {unequal} |"
