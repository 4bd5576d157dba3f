"""Turn pydantic's findings into our errors, each with its key, unknown keys with the nearest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from spotd.base.errors import Problem, nearest, suggest

Path = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_SECRET = re.compile(r"secret|password|token|credential|webhook|(^|_)key($|_)|^url$")
_TEXTS = {
    "string_type": ("must be text", "put quotes around it"),
    "bool_type": ("must be true or false", ""),
    "bool_parsing": ("must be true or false", ""),
    "int_type": ("must be a whole number", ""),
    "int_parsing": ("must be a whole number", ""),
    "int_from_float": ("must be a whole number", ""),
    "float_type": ("must be a number", ""),
    "float_parsing": ("must be a number", ""),
    "finite_number": ("must be a finite number", ""),
    "list_type": ("must be a list", ""),
    "dict_type": ("must be a block of keys", ""),
    "model_type": ("must be a block of keys", ""),
    "string_pattern_mismatch": (
        "is not a valid name",
        "use up to 63 letters, digits, '.', '_' and '-', a letter or digit at both ends",
    ),
    "too_short": ("must not be empty", ""),
    "missing": ("is missing", "add it"),
    "union_tag_not_found": ("needs the key 'kind'", ""),
}


def key_text(path: Path) -> str:
    """Return a key as people write it: `resources.any_of[1].region`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def validate_partly(
    model: type[Model], data: dict[str, Any]
) -> tuple[Model, list[tuple[Path, Problem]]]:
    """Return the model of `data`, and what is wrong with it.

    Wrong values are removed from `data` and the rest is tried again, so that checks of other keys
    can go on. If that fails, too, the model is that of an empty input. The model must have no
    required keys.
    """
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        problems = list(problems_of(error, model))
    for path, _ in problems:
        _drop(data, path)
    try:
        return model.model_validate(data), problems
    except ValidationError:
        return model(), problems


def _drop(data: dict[str, Any], path: Path) -> None:
    """Remove the innermost key on the path."""
    block: Any = data
    holder, key = data, path[0] if path else ""
    for part in path:
        if isinstance(block, dict) and part in block:
            holder, key = block, part
            block = block[part]
        elif isinstance(block, list) and isinstance(part, int) and part < len(block):
            block = block[part]
        else:
            break
    holder.pop(str(key), None)


def problems_of(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Path, Problem]]:
    """Yield each finding with the path of its value in the input, without model tags."""
    for detail in error.errors(include_url=False):
        path, models = _walk(model, detail["loc"])
        yield path, _problem(path, models, detail, model)


def _problem(
    path: Path, models: list[type[BaseModel]], detail: ErrorDetails, root: type[BaseModel]
) -> Problem:
    where, kind, context = key_text(path), detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = {name for candidate in models for name in candidate.model_fields}
        if f"{path[-1]}_file" in known:
            forms = [f"{path[-1]}_{form}" for form in ("file", "env", "credential")]
            return Problem(where, "a secret must not be in the file", f"use {' or '.join(forms)}")
        return Problem(where, "unknown key", _fix(str(path[-1]), known, root))
    if kind == "value_error":
        text, _, fix = str(context["error"]).partition("; ")
        return Problem(where, text, fix)
    return _mistyped(where, path, detail)


def _mistyped(where: str, path: Path, detail: ErrorDetails) -> Problem:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "union_tag_invalid":
        text = f"{context['tag']!r} is not possible"
        return Problem(f"{where}.kind", text, f"use {context['expected_tags']}")
    if kind == "literal_error":
        text = f"{_shown(detail['input'])} is not possible"
        return Problem(where, text, f"use {context['expected']}")
    if kind not in _TEXTS:
        return Problem(where, detail["msg"].replace("Input should", "must"))
    text, fix = _TEXTS[kind]
    hidden = kind in {"missing", "too_short"} or any(is_secret(str(part)) for part in path)
    return Problem(where, text if hidden else f"{text}, not {_shown(detail['input'])}", fix)


def is_secret(key: str) -> bool:
    """Return whether the value of such a key must not be shown, not even in an error."""
    return _SECRET.search(key) is not None


def _shown(value: object) -> str:
    """Short enough for one line, and never the content of a block."""
    if isinstance(value, Mapping):
        return "a block of keys"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fix(key: str, known: set[str], root: type[BaseModel]) -> str:
    if nearest(key, known):
        return suggest(key, known)
    homes = sorted({key_text((*path, key)) for path in _homes(root, key)})
    return f"it belongs at {' or '.join(homes)}" if homes else suggest(key, known)


def _homes(model: type[BaseModel], key: str, path: Path = ()) -> Iterator[Path]:
    """Yield the paths in the input at which such a key is valid."""
    if key in model.model_fields:
        yield path
    for name, field in model.model_fields.items():
        for inner in _models_in(field.annotation):
            if get_origin(field.annotation) is None or inner is field.annotation:
                yield from _homes(inner, key, (*path, name))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _walk(model: type[BaseModel], location: Path) -> tuple[Path, list[type[BaseModel]]]:
    """Return the path without union tags, and the models that the last key was looked up in."""
    path: list[str | int] = []
    models, inside, is_key = [model], [model], False
    for part in location:
        fields = [
            candidate.model_fields[part]
            for candidate in models
            if not is_key and isinstance(part, str) and part in candidate.model_fields
        ]
        tagged = [item for item in models if not is_key and _has_tag(item, part)]
        if tagged and not fields:
            models = inside = tagged
            continue
        path.append(part)
        inside, is_key = models, False
        if fields:
            models = [nested for field in fields for nested in _models_in(field.annotation)]
            is_key = any(_is_dict(field.annotation) for field in fields)
    return tuple(path), inside


def _is_dict(annotation: Any) -> bool:
    """Return whether the next part of a location is the user's own key, not a model's."""
    origin = get_origin(annotation)
    if origin in {Annotated, Union, UnionType}:
        return any(_is_dict(part) for part in get_args(annotation))
    return origin is dict


def _has_tag(model: type[BaseModel], tag: str | int) -> bool:
    kind = model.model_fields.get("kind")
    return kind is not None and _is_literal(kind.annotation, tag)


def _is_literal(annotation: Any, value: object) -> bool:
    return get_origin(annotation) is Literal and value in get_args(annotation)
