"""Fields of a record that is divided into parts, reached by name alone.

A large record groups its fields into smaller records, its parts. No two fields of a record and its
parts have the same name, so a column of the database, and a key of a stored or sent object, names
one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")

PART = {"part": True}  # metadata of a field that is a part


@cache
def parts_of(kind: Any) -> Mapping[str, Any]:
    """The parts of a dataclass: field -> class."""
    names = [item.name for item in fields(kind) if item.metadata.get("part")]
    types = get_type_hints(kind) if names else {}
    return {name: types[name] for name in names}


@cache
def part_names(kind: Any) -> Mapping[str, str]:
    """The part that has each field of the parts: field of a part -> the part's field."""
    return {item.name: part for part, inner in parts_of(kind).items() for item in fields(inner)}


@cache
def fields_of(kind: Any) -> Mapping[str, Field[Any]]:
    """All fields of a dataclass by name, those of its parts in place of the parts."""
    parts, found = parts_of(kind), list[Field[Any]]()
    for item in fields(kind):
        found += fields(parts[item.name]) if item.name in parts else (item,)
    return {item.name: item for item in found}


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """The names of all fields of a dataclass, those of its parts in place of the parts."""
    return tuple(fields_of(kind))


@cache
def types_of(kind: Any) -> Mapping[str, Any]:
    """The types of the fields of a dataclass and of its parts."""
    found = get_type_hints(kind)
    for inner in parts_of(kind).values():
        found |= get_type_hints(inner)
    return {name: found[name] for name in fields_of(kind)}


def is_required(item: Field[Any]) -> bool:
    """Return whether the field has no default."""
    return item.default is MISSING and item.default_factory is MISSING


def value_of(record: object, name: str) -> Any:
    """The value of a field of a record or of one of its parts. Raises AttributeError."""
    kind: Any = type(record)
    part = part_names(kind).get(name)
    return getattr(record if part is None else getattr(record, part), name)


def values_of(record: object, names: tuple[str, ...]) -> dict[str, Any]:
    """The values of several fields."""
    return {name: value_of(record, name) for name in names}


def flat_data(record: Any) -> dict[str, Any]:
    """`dataclasses.asdict`, with the fields of the parts in place of the parts."""
    kind: Any = type(record)
    data = asdict(record)
    for part in parts_of(kind):
        data |= data.pop(part)
    return data


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
