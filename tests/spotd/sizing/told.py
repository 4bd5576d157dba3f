"""Options that are all given, so that nothing is left to a framework's defaults."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from spotd.sizing.run import Run

_OPEN = {"gpus", "method", "sequence", "tensor", "context", "quantiser"}
# Those of tuned runs, from which the published figures come: the defaults of `Run`.
TUNED: dict[str, Any] = {item.name: item.default for item in fields(Run) if item.name not in _OPEN}


def tuned(words: dict[str, Any]) -> dict[str, Any]:
    """Return `words` with each other option as in a tuned run."""
    ragged = {"ragged": True} if words.get("example_tokens") else {}
    return {**TUNED, **ragged, **words}


def flags(words: dict[str, Any]) -> list[str]:
    """Return the flags of `spotctl rightsize` that give the options."""
    given: list[str] = []
    for name, value in words.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            given.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            given += [f"--{flag}", str(value)]
    return given
