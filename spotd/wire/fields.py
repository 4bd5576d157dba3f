"""Reading JSON that somebody else wrote: every surprise is a `WireError` that names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class WireError(ValueError):
    """A line, command or document that is not what this module writes."""


def read_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object. Raises WireError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError("not a JSON object")
    return value


def read_field(value: object, name: str, kind: type | tuple[type, ...]) -> Any:
    """A member of an object, of the given type. Raises WireError."""
    if not isinstance(value, Mapping):
        raise WireError(f"{value!r} is not an object with a field {name!r}")
    found = value.get(name)
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise WireError(f"field {name!r} is {found!r}")
    return found


def read_number(value: object, name: str) -> float:
    """A member that is a number. Raises WireError."""
    try:
        return float(read_field(value, name, (int, float)))
    except OverflowError:
        raise WireError(f"field {name!r} is too large a number") from None


def encode(value: Mapping[str, Any]) -> bytes:
    """One line, newline included."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode() + b"\n"
