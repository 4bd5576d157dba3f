"""Fields of a record that is divided into parts, reached by name alone.

A large record groups its fields into smaller records, its parts. No two fields of a record and its
parts have the same name, so a column of the database names one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

PART = {"part": True}  # metadata of a field that is a part; its default tells its class


@cache
def parts_of(kind: Any) -> Mapping[str, type]:
    """The parts of a dataclass: field -> class."""
    found = (item for item in fields(kind) if item.metadata.get("part"))
    return {item.name: type(item.default) for item in found}


@cache
def part_names(kind: Any) -> Mapping[str, str]:
    """The part that has each field of the parts: field of a part -> the part's field."""
    return {item.name: part for part, inner in parts_of(kind).items() for item in fields(inner)}


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """The names of all fields of a dataclass, those of its parts in place of the parts."""
    parts, names = parts_of(kind), []
    for item in fields(kind):
        inner = parts.get(item.name)
        names += [item.name] if inner is None else [field.name for field in fields(inner)]
    return tuple(names)


def value_of(record: object, name: str) -> Any:
    """The value of a field of a record or of one of its parts. Raises AttributeError."""
    kind: Any = type(record)
    part = part_names(kind).get(name)
    return getattr(record if part is None else getattr(record, part), name)


def values_of(record: object, names: tuple[str, ...]) -> dict[str, Any]:
    """The values of several fields."""
    return {name: value_of(record, name) for name in names}


def build(kind: type[T], values: Mapping[str, Any]) -> T:
    """A record of the values of its fields and of its parts' fields.

    Raises TypeError for an unknown field, and for one that has no value and no default.
    """
    record: Any = kind
    names, parts, own = part_names(record), parts_of(record), dict(values)
    inner: dict[str, dict[str, Any]] = {}
    for name in names.keys() & own.keys():
        inner.setdefault(names[name], {})[name] = own.pop(name)
    return kind(**own, **{part: parts[part](**given) for part, given in inner.items()})
