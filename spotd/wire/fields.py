"""Read untrusted JSON: every unexpected value raises a `WireError` that names the field."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from typing import Any

MAX_NUMBER = 1 << 53  # upper limit of every count

# Made once: `json.dumps` makes an encoder for every call that has options.
_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)
_shorten = reprlib.Repr()
_shorten.maxstring = 60


class WireError(ValueError):
    """A line, command or document that is invalid."""


def shown(value: object) -> str:
    """Return a value for an error message, shortened if it is long or deeply nested."""
    return _shorten.repr(value)[:200]


def read_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises WireError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError("not a JSON object")
    return value


def read_field(value: object, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return a member of an object, which must have the given type. Raises WireError."""
    if not isinstance(value, Mapping):
        raise WireError(f"{shown(value)} is not an object with a field {name!r}")
    member = value.get(name)
    if not isinstance(member, kind) or (isinstance(member, bool) and kind is not bool):
        raise WireError(f"field {name!r} is {shown(member)}")
    return member


def read_count(value: object, name: str) -> int:
    """Return a member that is an integer from 0 to MAX_NUMBER. Raises WireError."""
    count: int = read_field(value, name, int)
    if not 0 <= count <= MAX_NUMBER:
        raise WireError(f"field {name!r} is {shown(count)}")
    return count


def read_texts(value: object, name: str) -> dict[str, str]:
    """Return a member that maps names to text. Raises WireError."""
    texts: dict[str, str] = read_field(value, name, dict)
    if not all(isinstance(text, str) for text in texts.values()):
        raise WireError(f"field {name!r} is {shown(texts)}")
    return texts


def read_list(value: object, name: str, kind: type) -> list[Any]:
    """Return a member that is a list of items of exactly that type. Raises WireError."""
    items: list[Any] = read_field(value, name, list)
    if not all(type(item) is kind for item in items):
        raise WireError(f"field {name!r} is {shown(items)}")
    return items


def read_number(value: object, name: str) -> float:
    """Return a member that is a finite number. Raises WireError."""
    try:
        number = float(read_field(value, name, (int, float)))
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise WireError(f"field {name!r} is not a finite number")
    return number


def encode(value: Mapping[str, Any]) -> bytes:
    """Encode an object as one JSON line, including the newline."""
    return _ENCODER.encode(value).encode() + b"\n"
