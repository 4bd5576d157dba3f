"""Load imported weights (`spotctl ckpt import`) into the model that begins with them.

Needs torch, Python >= 3.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .objects import ShardedModel, Stateful, TrainableParameters

MAX_NAMED = 5  # tensors of each kind named in an error


def load_weights(objects: Mapping[str, Stateful], weights: Mapping[str, Tensor]) -> None:
    """Load weights into the one model among `objects`, in the model's dtypes.

    The other objects stay as they are. A tensor that the model has under several names may come
    under one of them. All ranks call it. Raises ValueError, naming the tensors that do not fit;
    then nothing is changed.
    """
    models = {
        name: value
        for name, value in objects.items()
        if isinstance(value, nn.Module | ShardedModel | TrainableParameters)
    }
    if len(models) != 1:
        names = ", ".join(models) or "none"
        raise ValueError(f"imported weights are of one model, and here are: {names}")
    ((name, model),) = models.items()
    model.load_state_dict(match_weights(name, model, weights))


def match_weights(
    name: str, model: nn.Module | ShardedModel | TrainableParameters, weights: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the state dict for `model`, called `name` in errors. Raises ValueError."""
    # In a sharded model each rank has a part with the whole tensor's shape: no gather is needed.
    module = model.model if isinstance(model, ShardedModel) else model
    model_state = dict(module.state_dict())
    tensors = {key: value for key, value in model_state.items() if isinstance(value, Tensor)}
    matched = {key: weights[key] for key in tensors if key in weights}
    matched |= _tied(tensors, matched)
    problems = {
        "missing": sorted(tensors.keys() - matched.keys()),
        "unknown to it": sorted(weights.keys() - tensors.keys()),
        "of another shape": [
            f"{key} is {list(value.shape)} and not {list(tensors[key].shape)}"
            for key, value in matched.items()
            if value.shape != tensors[key].shape
        ],
    }
    if any(problems.values()):
        text = "; ".join(
            f"{what}: {_first_names(names)}" for what, names in problems.items() if names
        )
        raise ValueError(
            f"the imported weights do not fit {name}: {text}. Build the model that they are of, or "
            "import again: `spotctl ckpt import --only PREFIX` takes a part, and cuts PREFIX off"
        )
    return model_state | matched


def _tied(tensors: Mapping[str, Tensor], matched: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that come under another name of the same parameter."""
    weights_by_storage = {
        _storage_key(tensors[key]): value for key, value in matched.items() if tensors[key].numel()
    }
    return {
        key: weights_by_storage[_storage_key(value)]
        for key, value in tensors.items()
        if key not in matched and value.numel() and _storage_key(value) in weights_by_storage
    }


def _storage_key(tensor: Tensor) -> tuple[Any, ...]:
    local: Any = tensor
    if type(tensor).__name__ == "DTensor":
        local = local.to_local()
    pointer: int = local.data_ptr()
    # A tensor without memory (an empty shard, the meta device) equals no other.
    return (pointer, *tensor.shape) if pointer else (id(tensor),)


def _first_names(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
