"""Flatten a `state_dict()` into its tensors and a JSON tree that names their positions.

Numbers, strings, lists, tuples, dictionaries with any keys, bytes, NumPy arrays and numbers are
restored as they were; other types are refused, and nothing is pickled. Needs torch, Python >= 3.10.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
_PLAIN = (type(None), bool, int, str)
_EMPTY = torch.empty(0, dtype=torch.uint8)


class StateError(TypeError):
    """A value cannot be saved; the text says where it is and what to do."""


def flatten_state(value: Any, name: str) -> tuple[Any, Tensors]:
    """Return the tree of `value` and its tensors, whose names begin with `name`.

    The tensors are not copied. Raises StateError.
    """
    tensors: Tensors = {}
    return _flatten(value, name, tensors), tensors


def unflatten_state(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value of a tree made by `flatten_state`. Raises ValueError for any other tree."""
    if isinstance(tree, list):
        return [unflatten_state(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((mark, content),) = tree.items()
        if mark in _DECODERS:
            return _DECODERS[mark](content, tensors)
        if mark.startswith("$"):
            raise ValueError(f"the checkpoint has a kind of value that is not known here: {mark}")
    return {key: unflatten_state(item, tensors) for key, item in tree.items()}


def _flatten(value: Any, name: str, tensors: Tensors) -> Any:
    if isinstance(value, Tensor):
        return _flatten_tensor(value, name, tensors)
    if isinstance(value, float):  # includes NumPy's
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [_flatten(item, f"{name}.{at}", tensors) for at, item in enumerate(value)]
    if isinstance(value, tuple):
        return {
            "$tuple": [_flatten(item, f"{name}.{at}", tensors) for at, item in enumerate(value)]
        }
    if isinstance(value, Mapping):
        return _flatten_mapping(value, name, tensors)
    if isinstance(value, bytes | bytearray):
        content = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else _EMPTY
        return {"$bytes": _add_tensor(content, name, tensors)}
    if type(value).__module__ == "numpy":
        return _flatten_array(value, name, tensors)
    raise StateError(
        f"{name} is of type {type(value).__name__}, which cannot be saved: a state has tensors, "
        "numbers, strings, lists, tuples, dictionaries, bytes and NumPy arrays. Leave it out of "
        "state_dict(), or give it as one of these"
    )


def _flatten_mapping(value: Mapping[Any, Any], name: str, tensors: Tensors) -> Any:
    items = [(key, _flatten(item, f"{name}.{key}", tensors)) for key, item in value.items()]
    if isinstance(value, Counter):
        return {"$counter": [[_flatten(key, name, tensors), item] for key, item in items]}
    # The JSON of a checkpoint is sorted, so it keeps the order of sorted keys alone.
    plain = all(isinstance(key, str) and not key.startswith("$") for key, _ in items)
    if plain and list(value) == sorted(value):
        return dict(items)
    return {"$items": [[_flatten(key, name, tensors), item] for key, item in items]}


def _flatten_array(value: Any, name: str, tensors: Tensors) -> Any:
    if not value.shape:
        return _flatten(value.item(), name, tensors)
    try:
        return {"$array": _add_tensor(torch.from_numpy(value.copy()), name, tensors)}
    except TypeError as error:
        raise StateError(f"{name} is an array that torch has no type for: {error}") from None


def _flatten_tensor(value: Tensor, name: str, tensors: Tensors) -> Any:
    added = _add_tensor(value, name, tensors)
    if value.is_contiguous() or not _is_dense(value):
        return {"$tensor": added}
    return {"$strided": [added, list(value.stride())]}  # as of channels_last


def _is_dense(value: Tensor) -> bool:
    """Whether its elements fill the memory without gaps and overlaps, in whatever order."""
    filled = 1
    for stride, length in sorted(zip(value.stride(), value.shape, strict=True)):
        if length != 1 and stride != filled:
            return False
        filled *= length
    return True


def _add_tensor(value: Tensor, name: str, tensors: Tensors) -> str:
    if type(value).__name__ == "DTensor" or value.layout is not torch.strided:
        raise StateError(
            f"{name} is a sharded or sparse tensor, which is not saved as it is: give the model "
            "and its optimizer to spotd_hook themselves, and not their state"
        )
    if value.is_quantized or value.is_nested or value.is_meta:
        kind = "quantized" if value.is_quantized else "nested" if value.is_nested else "meta"
        raise StateError(
            f"{name} is a {kind} tensor, which cannot be saved: leave it out of state_dict(), or "
            "give what it is made of, such as the integers and the scale of a quantized one"
        )
    while name in tensors:  # keys with dots may collide
        name += "'"
    tensors[name] = value.detach()
    return name


def _get_tensor(content: str, tensors: Mapping[str, Tensor]) -> Tensor:
    if content not in tensors:
        raise ValueError(f"the checkpoint has no tensor {content!r}")
    return tensors[content]


def _get_strided(content: Any, tensors: Mapping[str, Tensor]) -> Tensor:
    name, strides = content
    value = _get_tensor(name, tensors)
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def _unflatten_items(content: Any, tensors: Mapping[str, Tensor]) -> list[tuple[Any, Any]]:
    return [(unflatten_state(k, tensors), unflatten_state(v, tensors)) for k, v in content]


_DECODERS: Mapping[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "$tensor": _get_tensor,
    "$strided": _get_strided,
    "$float": lambda content, _: float(content),
    "$tuple": lambda content, tensors: tuple(unflatten_state(item, tensors) for item in content),
    "$bytes": lambda content, tensors: bytes(_get_tensor(content, tensors).tolist()),
    "$array": lambda content, tensors: _get_tensor(content, tensors).numpy().copy(),
    "$items": lambda content, tensors: dict(_unflatten_items(content, tensors)),
    "$counter": lambda content, tensors: Counter(dict(_unflatten_items(content, tensors))),
}
