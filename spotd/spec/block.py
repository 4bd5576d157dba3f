"""The base of every block in a job file, and markers for SkyPilot's keys without effect here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from spotd.base.validation import Path


@dataclass(frozen=True)
class Ignored:
    """Accepted with a warning."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """Known, and an error: leaving it out silently would harm."""

    fix: str


class Block(BaseModel):
    """A block of keys; an empty key counts as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {str(key): value for key, value in data.items() if value is not None}
        return data

    def marked(self, path: Path = ()) -> Iterator[tuple[Path, Ignored | Refused]]:
        """The keys that were given and are ignored or refused, in this block and those below."""
        for name in self.model_fields_set:
            value = getattr(self, name)
            for mark in type(self).model_fields[name].metadata:
                if isinstance(mark, Ignored | Refused):
                    yield (*path, name), mark
            if isinstance(value, Block):
                yield from value.marked((*path, name))
            elif isinstance(value, list | dict):
                items = value.items() if isinstance(value, dict) else enumerate(value)
                for key, item in items:
                    if isinstance(item, Block):
                        yield from item.marked((*path, name, key))
