"""Parse a job's amount of work: a time on one machine, or a number of steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from spotd.spec.quantities import DURATION_PATTERN, parse_duration_s

MAX_STEPS = 1_000_000_000_000
_STEPS = r"(\d+)\s*steps?"


@dataclass(frozen=True)
class WorkAmount:
    """An amount of work, as seconds or as steps; the other is 0."""

    seconds: float = 0.0
    steps: int = 0


def parse_work(value: Any) -> WorkAmount:
    """Parse "40h" or "100000 steps". Raises ValueError."""
    text = value.strip().lower().replace("_", "") if isinstance(value, str) else ""
    if match := re.fullmatch(_STEPS, text):
        if not 0 < int(match[1]) <= MAX_STEPS:
            raise ValueError(f"{value!r} is not a number of steps; write one like 100000 steps")
        return WorkAmount(steps=int(match[1]))
    try:
        seconds = parse_duration_s(text)
    except ValueError:
        raise ValueError(
            f"{value!r} is not an amount of work; write hours of training like 40h, or 100000 steps"
        ) from None
    if seconds < 1:
        raise ValueError(
            "is not a positive amount; write hours of training like 40h, or 100000 steps"
        )
    return WorkAmount(seconds=seconds)


WorkField = Annotated[
    WorkAmount,
    BeforeValidator(parse_work),
    WithJsonSchema({"type": "string", "pattern": rf"^({DURATION_PATTERN}|[0-9_]+ ?steps?)$"}),
]
