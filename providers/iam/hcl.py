"""Terraform's language, as far as modules of ours are written in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


class Raw(str):
    """An expression, written as it is."""

    __slots__ = ()


def block(kind: str, labels: list[str], body: Mapping[str, Any]) -> str:
    """One block; a list of mappings among its values is as many blocks of that name."""
    head = " ".join([kind, *(json.dumps(label) for label in labels)])
    return f"{head} {{\n" + "".join(_lines(body, "  ")) + "}\n"


def _lines(body: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in body.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            for inner in value:
                yield (
                    f"{indent}{key} {{\n" + "".join(_lines(inner, indent + "  ")) + f"{indent}}}\n"
                )
        elif isinstance(value, Mapping):
            yield f"{indent}{key} = {{\n" + "".join(_pairs(value, indent + "  ")) + f"{indent}}}\n"
        else:
            yield f"{indent}{key} = {_value(value)}\n"


def _pairs(body: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in body.items():
        yield f"{indent}{json.dumps(key)} = {_value(value)}\n"


def _value(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return json.dumps(value)


def heredoc(text: str) -> Raw:
    """JSON, as it is."""
    return Raw(f"<<-JSON\n{text}\nJSON")


def label_of(name: str) -> str:
    """What a thing is called in a module."""
    return name.replace("-", "_")
