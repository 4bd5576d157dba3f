"""What `state_dict()` gives, apart: its tensors, and a tree of JSON that says where each belongs.

Numbers, texts, lists, tuples, dictionaries with any keys, bytes, NumPy's arrays and numbers come
back as they were; nothing else is saved, and nothing is pickled. Needs torch, Python >= 3.10.
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
    """Something that cannot be saved; the text says where it is and what to do."""


def take_apart(value: Any, name: str) -> tuple[Any, Tensors]:
    """The tree of `value` and its tensors, whose names begin with `name`. They are not copied.
    Raises StateError."""
    tensors: Tensors = {}
    return _apart(value, name, tensors), tensors


def put_together(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What was taken apart. Raises ValueError for a tree that nothing was taken apart to."""
    if isinstance(tree, list):
        return [put_together(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((mark, content),) = tree.items()
        if mark in _MARKS:
            return _MARKS[mark](content, tensors)
        if mark.startswith("$"):
            raise ValueError(f"the checkpoint has a kind of value that is not known here: {mark}")
    return {key: put_together(item, tensors) for key, item in tree.items()}


def _apart(value: Any, name: str, tensors: Tensors) -> Any:
    if isinstance(value, Tensor):
        return {"$tensor": _note(value, name, tensors)}
    if isinstance(value, float):  # NumPy's among them
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [_apart(item, f"{name}.{at}", tensors) for at, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [_apart(item, f"{name}.{at}", tensors) for at, item in enumerate(value)]}
    if isinstance(value, Mapping):
        return _mapping_apart(value, name, tensors)
    if isinstance(value, bytes | bytearray):
        content = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else _EMPTY
        return {"$bytes": _note(content, name, tensors)}
    if type(value).__module__ == "numpy":
        return _array_apart(value, name, tensors)
    raise StateError(
        f"{name} is of type {type(value).__name__}, which cannot be saved: a state has tensors, "
        "numbers, texts, lists, tuples, dictionaries, bytes and NumPy arrays. Leave it out of "
        "state_dict(), or give it as one of these"
    )


def _mapping_apart(value: Mapping[Any, Any], name: str, tensors: Tensors) -> Any:
    items = [(key, _apart(item, f"{name}.{key}", tensors)) for key, item in value.items()]
    if isinstance(value, Counter):
        return {"$counter": [[_apart(key, name, tensors), item] for key, item in items]}
    if all(isinstance(key, str) and not key.startswith("$") for key, _ in items):
        return dict(items)
    return {"$items": [[_apart(key, name, tensors), item] for key, item in items]}


def _array_apart(value: Any, name: str, tensors: Tensors) -> Any:
    if not value.shape:
        return _apart(value.item(), name, tensors)
    try:
        return {"$array": _note(torch.from_numpy(value.copy()), name, tensors)}
    except TypeError as error:
        raise StateError(f"{name} is an array that torch has no type for: {error}") from None


def _note(value: Tensor, name: str, tensors: Tensors) -> str:
    if type(value).__name__ == "DTensor" or value.layout is not torch.strided:
        raise StateError(
            f"{name} is a sharded or sparse tensor, which is not saved as it is: give the model "
            "and its optimizer to spotd_hook themselves, and not their state"
        )
    while name in tensors:  # of keys that have points in them
        name += "'"
    tensors[name] = value.detach()
    return name


def _taken(content: str, tensors: Mapping[str, Tensor]) -> Tensor:
    if content not in tensors:
        raise ValueError(f"the checkpoint has no tensor {content!r}")
    return tensors[content]


def _keyed(content: Any, tensors: Mapping[str, Tensor]) -> list[tuple[Any, Any]]:
    return [(put_together(k, tensors), put_together(v, tensors)) for k, v in content]


_MARKS: Mapping[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "$tensor": _taken,
    "$float": lambda content, _: float(content),
    "$tuple": lambda content, tensors: tuple(put_together(item, tensors) for item in content),
    "$bytes": lambda content, tensors: bytes(_taken(content, tensors).tolist()),
    "$array": lambda content, tensors: _taken(content, tensors).numpy().copy(),
    "$items": lambda content, tensors: dict(_keyed(content, tensors)),
    "$counter": lambda content, tensors: Counter(dict(_keyed(content, tensors))),
}
