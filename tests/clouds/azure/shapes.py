"""Validate Azure documents against the SDK's models: every field must be known by its name on the
wire, with a value of its type.

The SDK itself is lenient: it keeps unknown fields, and treats a misspelt field as missing.
"""

from __future__ import annotations

import datetime as dt
import re
import types
import typing
from collections.abc import Iterator
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Any

# Lists of values that Azure itself no longer keeps up: SKUs have taken their place.
_OPEN = ("VirtualMachineSizeTypes",)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def problems(models: ModuleType, name: str, document: Any) -> list[str]:
    """Return the mismatches of a document with `models.<name>`, one line each."""
    return [*_check(models, getattr(models, name), document, name)]


def _check(models: ModuleType, kind: Any, value: Any, where: str) -> Iterator[str]:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        yield from _check_union(models, typing.get_args(kind), value, where)
    elif origin is list:
        if not isinstance(value, list):
            yield f"{where}: {value!r} is not a list"
            return
        for at, item in enumerate(value):
            yield from _check(models, typing.get_args(kind)[0], item, f"{where}[{at}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is not an object"
            return
        for key, item in value.items():
            yield from _check(models, typing.get_args(kind)[1], item, f"{where}.{key}")
    elif isinstance(kind, type) and hasattr(kind, "as_dict"):
        yield from _check_model(models, kind, value, where)
    elif not _fits(kind, value):
        yield f"{where}: {value!r} is not a {getattr(kind, '__name__', kind)}"


def _check_union(
    models: ModuleType, kinds: tuple[Any, ...], value: Any, where: str
) -> Iterator[str]:
    if value is None and type(None) in kinds:
        return
    some = [kind for kind in kinds if kind is not type(None)]
    # "str or one of an enum": the SDK reads any text. Here it has to be a value that is known.
    enums = [kind for kind in some if isinstance(kind, type) and issubclass(kind, Enum)]
    if enums and enums[0].__name__ not in _OPEN:
        if value not in {item.value for kind in enums for item in kind}:
            yield f"{where}: {value!r} is not one of {enums[0].__name__}"
        return
    result = [[*_check(models, kind, value, where)] for kind in some]
    if all(result):
        yield from min(result, key=len)


def _check_model(models: ModuleType, kind: Any, value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: {value!r} is not a {kind.__name__}"
        return
    fields = _fields(models, kind)
    for key, item in value.items():
        if key not in fields:
            yield f"{where}.{key}: {kind.__name__} has no such field"
        else:
            yield from _check(models, fields[key], item, f"{where}.{key}")


@cache
def _fields(models: ModuleType, kind: Any) -> dict[str, Any]:
    """Return name on the wire -> type, inherited ones included."""
    kind({})  # a model knows its fields once there was one
    scope = {**vars(typing), "datetime": dt, "_models": models}
    result = {}
    for base in reversed(kind.__mro__):
        for attribute, hint in vars(base).get("__annotations__", {}).items():
            field = kind._attr_to_rest_field.get(attribute)
            if field is not None:
                result[field._rest_name] = _resolved(hint, scope)
    return result


def _resolved(hint: Any, scope: dict[str, Any]) -> Any:
    """Resolve a hint that is still text, wholly or in part."""
    holder = type("Holder", (), {"__annotations__": {"it": hint}})
    return typing.get_type_hints(holder, scope)["it"]


def _fits(kind: Any, value: Any) -> bool:
    if kind is Any or kind is typing.Any:
        return True
    if kind is dt.datetime:
        return isinstance(value, str) and bool(_TIME.fullmatch(value))
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value in {item.value for item in kind}
    return isinstance(value, kind)
