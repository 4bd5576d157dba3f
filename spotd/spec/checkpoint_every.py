"""Parse the checkpoint interval of a job: `auto`, a time, a number of steps, or a preset."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from spotd.base.errors import suggest
from spotd.spec.quantities import DURATION_PATTERN, parse_duration_s

AUTO = "auto"
MAX_STEPS = 1_000_000_000
_STEPS = r"(\d+)\s*steps?"


@dataclass(frozen=True)
class CheckpointEvery:
    """A checkpoint interval. A value of 0 for `steps` or `seconds` means that it is not used.

    With `auto` the interval is computed from measured save times.
    """

    auto: bool = False
    steps: int = 0
    seconds: float = 0.0
    preset: str = ""


# Intervals that published guides to training on spot machines advise, by kind of training.
PRESETS = {
    "7b-qlora": CheckpointEvery(steps=100, preset="7b-qlora"),
    "70b-qlora": CheckpointEvery(steps=500, preset="70b-qlora"),
    "70b-fp16": CheckpointEvery(steps=1000, preset="70b-fp16"),
    "405b": CheckpointEvery(steps=2000, preset="405b"),
    "search": CheckpointEvery(steps=200, preset="search"),
    "hourly": CheckpointEvery(seconds=3600.0, preset="hourly"),
    "steps-or-time": CheckpointEvery(steps=100, seconds=300.0, preset="steps-or-time"),
}
# Work that a machine lost without a notice may cost with that preset, where it is large.
RISKS = {
    "70b-fp16": "1000 steps of a 70B model take 30 to 60 minutes",
    "405b": "2000 steps of a 405B model take hours",
    "hourly": "saves are an hour apart",
}


def parse_every(value: Any) -> CheckpointEvery:
    """Parse "auto", "5m", "500 steps", or the name of a preset. Raises ValueError."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if text == AUTO:
        return CheckpointEvery(auto=True)
    if text in PRESETS:
        return PRESETS[text]
    if match := re.fullmatch(_STEPS, text):
        if not 0 < int(match[1]) <= MAX_STEPS:
            raise ValueError(f"{value!r} is not a number of steps; write one like 500 steps")
        return CheckpointEvery(steps=int(match[1]))
    if re.fullmatch(r"[a-z][a-z0-9-]*", text):
        known = [AUTO, *PRESETS]
        raise ValueError(f"{value!r} is neither a time nor a preset; {suggest(text, known)}")
    try:
        return CheckpointEvery(seconds=parse_duration_s(value))
    except ValueError:
        raise ValueError(
            f"{value!r} is not a checkpoint interval; write auto, a time like 5m, or 500 steps"
        ) from None


_SCHEMA = {
    "anyOf": [
        {"enum": [AUTO, *PRESETS]},
        {"type": "string", "pattern": f"^{DURATION_PATTERN}$"},
        {"type": "string", "pattern": "^\\d+ *steps?$"},
    ],
    "examples": [AUTO, "5m", "500 steps", "70b-qlora"],
}
EveryField = Annotated[CheckpointEvery, BeforeValidator(parse_every), WithJsonSchema(_SCHEMA)]
