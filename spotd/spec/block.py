"""Base class of job-file blocks, and markers for SkyPilot keys that spotd does not support."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from spotd.base.validation import Path


@dataclass(frozen=True)
class Ignored:
    """A key that is accepted with a warning; `reason` says why it has no effect."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """A key that is an error because ignoring it would change the job; `fix` says what to write."""

    fix: str


class Block(BaseModel):
    """A block of keys. Unknown keys are errors; a key with value null counts as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {str(key): value for key, value in data.items() if value is not None}
        return data

    def marked_keys(self, path: Path = ()) -> Iterator[tuple[Path, Ignored | Refused]]:
        """Yield the path and mark of each ignored or refused key set here or in a nested block."""
        for name in self.model_fields_set:
            value = getattr(self, name)
            for mark in type(self).model_fields[name].metadata:
                if isinstance(mark, Ignored | Refused):
                    yield (*path, name), mark
            if isinstance(value, Block):
                yield from value.marked_keys((*path, name))
            elif isinstance(value, list | dict):
                items = value.items() if isinstance(value, dict) else enumerate(value)
                for key, item in items:
                    if isinstance(item, Block):
                        yield from item.marked_keys((*path, name, key))
