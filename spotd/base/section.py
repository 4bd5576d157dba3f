"""The base class of the configuration file's tables."""

from __future__ import annotations

import re

from pydantic import AfterValidator, BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def formed(pattern: str, like: str) -> AfterValidator:
    """Return a validator for text that matches `pattern`; its error shows the example `like`."""
    form = re.compile(pattern)

    def check(value: str) -> str:
        if not form.fullmatch(value):
            raise ValueError(f"{value[:100]!r} is not possible; write it like {like}")
        return value

    return AfterValidator(check)
