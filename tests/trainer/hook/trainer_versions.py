"""The arguments that the supported versions of the trainers have.

    python -m tests.trainer.hook.trainer_versions

adds those of the installed versions to trainer_versions.json. The oldest supported versions are in
it, too: `test_oldest_versions.py` compares them with the real ones (soak).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainer.hook.spotd_hook import arguments

RECORDED = Path(__file__).with_suffix(".json")
_VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def recorded() -> dict[str, dict[str, list[str]]]:
    """Return the arguments by version, such as "transformers 4.57.1", and by owner."""
    versions: dict[str, dict[str, list[str]]] = json.loads(RECORDED.read_text())
    return versions


def installed() -> dict[str, dict[str, list[str]]]:
    """Return the arguments of the installed versions, from their classes."""
    found: dict[str, dict[str, list[str]]] = {}
    for owner in arguments.owners():
        library = owner.partition(".")[0]
        try:
            key = f"{library} {version(library)}"
        except PackageNotFoundError:
            continue
        names = sorted(_arguments_of(owner))
        if names:
            found.setdefault(key, {})[owner] = names
    return found


def versions_by_argument(
    versions: Mapping[str, Mapping[str, list[str]]],
) -> dict[tuple[str, str], list[str]]:
    """Return for each argument, as (owner, name), the versions that have it."""
    by_argument: dict[tuple[str, str], list[str]] = {}
    for key, owners in sorted(versions.items()):
        for owner, names in owners.items():
            for name in names:
                by_argument.setdefault((owner, name), []).append(key)
    return by_argument


def _arguments_of(owner: str) -> Iterator[str]:
    """Yield the arguments of a class or function; nothing if this version lacks it."""
    found = _resolve(owner)
    if found is None:
        return
    if dataclasses.is_dataclass(found):
        yield from (one.name for one in dataclasses.fields(found) if one.init)
        return
    function = found.__init__ if inspect.isclass(found) else found
    for name, parameter in inspect.signature(function).parameters.items():
        if name != "self" and parameter.kind not in _VARIABLE:
            yield name


def _resolve(owner: str) -> Any:
    """Return the object with this dotted name, or None."""
    parts = owner.split(".")
    count = next(at for at, part in enumerate(parts) if part[0].isupper())
    found: Any = importlib.import_module(".".join(parts[:count]))
    for part in parts[count:]:
        found = getattr(found, part, None)
    return found


if __name__ == "__main__":
    versions = (recorded() if RECORDED.exists() else {}) | installed()
    RECORDED.write_text(json.dumps(dict(sorted(versions.items())), indent=1) + "\n")
