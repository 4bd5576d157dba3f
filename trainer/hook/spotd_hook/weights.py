"""Weights that come from elsewhere (`spotctl ckpt import`), into the model that begins with them.
Needs torch, Python >= 3.10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .objects import Sharded, Stateful, Trained

MARK = "imported"  # in the JSON part of a checkpoint that has weights alone
NAMED = 5  # tensors of each kind in one error


def give_weights(objects: Mapping[str, Stateful], weights: Mapping[str, Tensor]) -> None:
    """Into the one model among `objects`, in its own types; what else there is begins as it is.
    Tensors that the model has under several names may come under one of them. All ranks call it.
    Raises ValueError, which names the tensors that do not fit; then nothing is changed."""
    models = {
        name: one for name, one in objects.items() if isinstance(one, nn.Module | Sharded | Trained)
    }
    if len(models) != 1:
        found = ", ".join(models) or "none"
        raise ValueError(f"imported weights are of one model, and here are: {found}")
    ((name, model),) = models.items()
    model.load_state_dict(fitted(name, model, weights))


def fitted(
    name: str, model: nn.Module | Sharded | Trained, weights: Mapping[str, Tensor]
) -> dict[str, Any]:
    """What `model`, called `name` in errors, is to load. Raises ValueError."""
    # Of a sharded one each rank has a part, of the whole shape: nothing is brought together.
    bare = model.model if isinstance(model, Sharded) else model
    ours = dict(bare.state_dict())
    tensors = {key: one for key, one in ours.items() if isinstance(one, Tensor)}
    found = {key: weights[key] for key in tensors if key in weights}
    found |= _tied(tensors, found)
    lines = {
        "missing": sorted(tensors.keys() - found.keys()),
        "unknown to it": sorted(weights.keys() - tensors.keys()),
        "of another shape": [
            f"{key} is {list(one.shape)} and not {list(tensors[key].shape)}"
            for key, one in found.items()
            if one.shape != tensors[key].shape
        ],
    }
    if any(lines.values()):
        text = "; ".join(f"{what}: {_some(names)}" for what, names in lines.items() if names)
        raise ValueError(
            f"the imported weights do not fit {name}: {text}. Build the model that they are of, or "
            "import anew: `spotctl ckpt import --only PREFIX` takes a part, and cuts PREFIX off"
        )
    return ours | found


def _tied(tensors: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What comes under another name of the same parameter."""
    places = {_place(tensors[key]): one for key, one in found.items() if tensors[key].numel()}
    return {
        key: places[_place(one)]
        for key, one in tensors.items()
        if key not in found and one.numel() and _place(one) in places
    }


def _place(tensor: Tensor) -> tuple[Any, ...]:
    local: Any = tensor
    if type(tensor).__name__ == "DTensor":
        local = local.to_local()
    place: int = local.data_ptr()
    # Without memory (a shard that is empty, the meta device) a tensor is like no other.
    return (place, *tensor.shape) if place else (id(tensor),)


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
