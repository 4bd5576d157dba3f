"""Reading JSON that somebody else wrote: every surprise is a `WireError` that names the field."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from typing import Any

MAX_NUMBER = 1 << 53  # of whatever is counted: more is no count that anything reached

# (`json.dumps` makes one of these for every call that has options, and `loads` looks for the
# encoding of bytes.)
_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)
_shorten = reprlib.Repr()
_shorten.maxstring = 60


class WireError(ValueError):
    """A line, command or document that is not what this module writes."""


def shown(value: object) -> str:
    """A value in an error's text: its beginning, however long or deep it is."""
    return _shorten.repr(value)[:200]


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
        raise WireError(f"{shown(value)} is not an object with a field {name!r}")
    found = value.get(name)
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise WireError(f"field {name!r} is {shown(found)}")
    return found


def read_count(value: object, name: str) -> int:
    """A member that counts something: 0 to MAX_NUMBER. Raises WireError."""
    found: int = read_field(value, name, int)
    if not 0 <= found <= MAX_NUMBER:
        raise WireError(f"field {name!r} is {shown(found)}")
    return found


def read_texts(value: object, name: str) -> dict[str, str]:
    """A member that maps names to texts. Raises WireError."""
    found: dict[str, str] = read_field(value, name, dict)
    if not all(isinstance(text, str) for text in found.values()):
        raise WireError(f"field {name!r} is {shown(found)}")
    return found


def read_list(value: object, name: str, kind: type) -> list[Any]:
    """A member that is a list of such items. Raises WireError."""
    found: list[Any] = read_field(value, name, list)
    if not all(type(item) is kind for item in found):
        raise WireError(f"field {name!r} is {shown(found)}")
    return found


def read_number(value: object, name: str) -> float:
    """A member that is a finite number. Raises WireError."""
    try:
        found = float(read_field(value, name, (int, float)))
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise WireError(f"field {name!r} is no number that can be reckoned with")
    return found


def encode(value: Mapping[str, Any]) -> bytes:
    """One line, newline included."""
    return _ENCODER.encode(value).encode() + b"\n"
