"""Frozen dataclasses to JSON text and back, strictly.

An unknown key or a wrong type is an error; a missing key takes the field's default, so that rows
written before the field existed stay readable. A field marked `providers.base.SPARSE` is left out
at its default, so that an older spotd can read the row. The fields of a part (spotd/wire/parts.py)
stand beside those of its record. A field's key is its name, or the `key` of its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import Field, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from providers.base import Offer
from spotd.domain.job import JobSpec
from spotd.wire.parts import build, fields_of, is_required, types_of, value_of

T = TypeVar("T")


class CodecError(ValueError):
    """The text was not written by this module for that type."""


def encode(value: object) -> str:
    """Compact JSON with sorted keys. Enums become their values, tuples lists."""
    return json.dumps(_plain(value), separators=(",", ":"), sort_keys=True)


def decode(kind: type[T], text: str) -> T:
    """The dataclass `kind` that `encode` wrote as `text`. Raises CodecError."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise CodecError(f"not JSON: {error}") from None
    value: T = _typed(kind, data, kind.__name__)
    return value


@lru_cache(maxsize=8192)
def decode_offer(text: str) -> Offer:
    """An offer; cached, since the same few are read again and again."""
    return decode(Offer, text)


@lru_cache(maxsize=8192)
def decode_spec(text: str) -> JobSpec:
    """A job's spec; cached, since it never changes."""
    return decode(JobSpec, text)


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _plain(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        kind: Any = type(value)
        known = _keys(kind)
        given = ((key, item, value_of(value, item.name)) for key, item in known.items())
        return {
            key: _plain(content)
            for key, item, content in given
            if not (item.metadata.get("sparse") and content == item.default)
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise CodecError(f"{type(value).__name__} cannot be stored")


@cache
def _keys(kind: Any) -> Mapping[str, Field[Any]]:
    """The keys of a record's object: key -> field of the record or of one of its parts."""
    return {item.metadata.get("key", name): item for name, item in fields_of(kind).items()}


def _typed(kind: Any, data: Any, where: str) -> Any:
    origin = get_origin(kind)
    if origin is UnionType:
        return None if data is None else _typed(_without_none(kind), data, where)
    if origin is tuple:
        return tuple(_typed(get_args(kind)[0], item, where) for item in _expect(list, data, where))
    if origin is not None and issubclass(origin, Mapping):
        inner = get_args(kind)[1]
        pairs = _expect(dict, data, where).items()
        return {key: _typed(inner, item, f"{where}.{key}") for key, item in pairs}
    if is_dataclass(kind):
        return _record(kind, _expect(dict, data, where), where)
    if issubclass(kind, Enum):
        return _member(kind, data, where)
    return _scalar(kind, data, where)


def _without_none(kind: Any) -> Any:
    """Return X of `X | None`."""
    (inner,) = (item for item in get_args(kind) if item is not NoneType)
    return inner


def _scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is float:
        return float(_expect((int, float), data, where))
    return data if kind is object else _expect(kind, data, where)


def _member(kind: type[Enum], data: Any, where: str) -> Enum:
    try:
        return kind(data)
    except ValueError as error:
        raise CodecError(f"{where}: {error}") from None


def _record(kind: Any, data: dict[str, Any], where: str) -> Any:
    known, types = _keys(kind), types_of(kind)
    foreign = sorted(data.keys() - known.keys())
    if foreign:
        raise CodecError(f"{where}: unknown field {', '.join(foreign)}")
    missing = [key for key, item in known.items() if key not in data and is_required(item)]
    if missing:
        raise CodecError(f"{where}: missing field {', '.join(missing)}")
    names = {key: known[key].name for key in data}
    given = {
        names[key]: _typed(types[names[key]], item, f"{where}.{key}") for key, item in data.items()
    }
    return build(kind, given)


def _expect(kind: Any, data: Any, where: str) -> Any:
    # bool is an int to Python, never to us.
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise CodecError(f"{where}: {data!r} is not a {getattr(kind, '__name__', kind)}")
    return data
