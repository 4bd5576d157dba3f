"""Google's own description of its APIs, as google-api-python-client ships it, which validates what
goes over the wire.

The SDK is lenient: it skips unknown fields and accepts unknown enum values, so it would not notice
a misspelling in the stand-in.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

_BITS = {"int32": (32, True), "uint32": (32, False), "int64": (64, True), "uint64": (64, False)}


class ShapeError(AssertionError):
    """A mismatch with the API's description: where, and what."""


@dataclass(frozen=True)
class Method:
    """A method of an API ("compute.instances.insert")."""

    ident: str
    parameters: Mapping[str, Mapping[str, Any]]
    request: str
    response: str
    given: Mapping[str, str]  # by its path


class Api:
    """One API; `name` is that of its document ("compute.v1")."""

    def __init__(self, name: str) -> None:
        folder = files("googleapiclient.discovery_cache").joinpath("documents")
        document = json.loads(folder.joinpath(f"{name}.json").read_text())
        self._schemas: Mapping[str, Any] = document["schemas"]
        self.common: Mapping[str, Any] = document["parameters"]
        prefix = "/" + document["servicePath"]
        self._methods = [
            (method["httpMethod"], _pattern(prefix + method["flatPath"]), method)
            for method in _methods(document)
        ]

    def method(self, verb: str, path: str) -> Method:
        """Return the method that a request calls. Raises ShapeError when there is none."""
        for known, pattern, method in self._methods:
            match = pattern.fullmatch(path) if known == verb else None
            if match is not None:
                return Method(
                    ident=method["id"],
                    parameters={**self.common, **method.get("parameters", {})},
                    request=method.get("request", {}).get("$ref", ""),
                    response=method.get("response", {}).get("$ref", ""),
                    given=match.groupdict(),
                )
        raise ShapeError(f"no method is {verb} {path}")

    def check_parameters(self, method: Method, given: Mapping[str, str]) -> None:
        """Check the query parameters. Raises ShapeError."""
        for name, text in given.items():
            known = method.parameters.get(name)
            if known is None or known.get("location") != "query":
                raise ShapeError(f"{method.ident} has no parameter {name}")
            value: Any = text
            if known["type"] == "integer":
                value = int(text)
            elif known["type"] == "boolean":
                value = {"true": True, "false": False}.get(text, text)
            self._check(f"{method.ident} {name}", known, value)

    def check(self, schema: str, value: Any) -> None:
        """Raises ShapeError for a value that does not match the schema."""
        self._check(schema, {"$ref": schema}, value)

    def _check(self, where: str, shape: Mapping[str, Any], value: Any) -> None:
        if "$ref" in shape:
            shape = self._schemas[shape["$ref"]]
        kind = shape.get("type", "any")
        if kind == "object":
            self._check_object(where, shape, value)
        elif kind == "array":
            if not isinstance(value, list):
                raise ShapeError(f"{where} is not a list: {value!r}")
            for number, item in enumerate(value):
                self._check(f"{where}[{number}]", shape["items"], item)
        elif kind != "any":
            _check_scalar(where, shape, value)

    def _check_object(self, where: str, shape: Mapping[str, Any], value: Any) -> None:
        if not isinstance(value, dict):
            raise ShapeError(f"{where} is not an object: {value!r}")
        fields, more = shape.get("properties", {}), shape.get("additionalProperties")
        for name, item in value.items():
            known = fields.get(name, more)
            if known is None:
                raise ShapeError(f"{where} has no field {name}")
            self._check(f"{where}.{name}", known, item)


@cache
def api(name: str) -> Api:
    """Cached: the documents have some megabytes."""
    return Api(name)


def _check_scalar(where: str, shape: Mapping[str, Any], value: Any) -> None:
    kind, form = shape["type"], shape.get("format", "")
    python = {"string": str, "integer": int, "boolean": bool, "number": int | float}[kind]
    if not isinstance(value, python) or (kind != "boolean" and isinstance(value, bool)):
        raise ShapeError(f"{where} is not a {kind}: {value!r}")
    if "enum" in shape and value not in shape["enum"]:
        raise ShapeError(f"{where} is none of {', '.join(shape['enum'])}: {value!r}")
    if "pattern" in shape and not re.fullmatch(shape["pattern"], str(value)):
        raise ShapeError(f"{where} does not match {shape['pattern']}: {value!r}")
    try:
        _check_format(form, value)
    except (ValueError, binascii.Error):
        raise ShapeError(f"{where} is not a {form}: {value!r}") from None


def _check_format(form: str, value: Any) -> None:
    """Raises ValueError. 64-bit integers travel as text."""
    if form in _BITS:
        bits, signed = _BITS[form]
        least = -(1 << bits - 1) if signed else 0
        if not least <= int(value) < least + (1 << bits):
            raise ValueError
    elif form == "byte":
        base64.b64decode(value, validate=True)
    elif form == "google-datetime":
        datetime.fromisoformat(value)


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", path)
    text = "".join(f"(?P<{p}>[^/]+)" if n % 2 else re.escape(p) for n, p in enumerate(parts))
    return re.compile(text)


def _methods(node: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    result = [*node.get("methods", {}).values()]
    for child in node.get("resources", {}).values():
        result.extend(_methods(child))
    return result
