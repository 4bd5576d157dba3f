"""The objects of a training program in a form that can be saved and restored.

Needs torch, Python >= 3.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


class Stateful(Protocol):
    """An object with a state, as most of torch's are."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


def stateful(objects: Mapping[str, Any]) -> dict[str, Stateful]:
    """Return each object in the form in which it is saved.

    Wrappers (DDP, torch.compile) are removed, sharded models are saved whole, and of models with
    adapters (PEFT) only the trained parameters. Raises TypeError for an object without a state.
    """
    unwrapped = {name: _unwrap(obj) for name, obj in objects.items()}
    modules = [obj for obj in unwrapped.values() if isinstance(obj, nn.Module)]
    sharded = [module for module in modules if is_sharded(module.parameters())]
    states: dict[str, Stateful] = {}
    for name, obj in unwrapped.items():
        if any(obj is module for module in sharded):
            states[name] = ShardedModel(obj)
        elif isinstance(obj, Optimizer) and is_sharded(_parameters(obj)):
            inner = getattr(obj, "optimizer", obj)  # accelerate's wraps another optimizer
            states[name] = ShardedOptimizer(_model_of(inner, sharded, name), inner)
        elif isinstance(obj, Optimizer):
            states[name] = WholeOptimizer(obj)
        elif hasattr(obj, "peft_config"):
            states[name] = TrainableParameters(obj)
        else:
            _check(name, obj)
            states[name] = obj
    return states


def needs_all_ranks(states: Mapping[str, Stateful]) -> bool:
    """Whether all ranks must call `state_dict` for one of them to have the state."""
    return any(isinstance(obj, ShardedModel | ShardedOptimizer) for obj in states.values())


def is_sharded(tensors: Iterable[Tensor]) -> bool:
    return any(type(getattr(obj, "data", obj)).__name__ == "DTensor" for obj in tensors)


@dataclass(frozen=True)
class TrainableParameters:
    """The trained parameters and the buffers of a model that is mostly frozen."""

    model: nn.Module

    def state_dict(self) -> dict[str, Any]:
        every = self.model.named_parameters(remove_duplicate=False)
        frozen = {name for name, obj in every if not obj.requires_grad}
        return {name: obj for name, obj in self.model.state_dict().items() if name not in frozen}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raises ValueError if the model lacks a tensor or did not get one."""
        wanted = self.state_dict().keys()
        if wanted != state_dict.keys():
            names = ", ".join(sorted(wanted ^ state_dict.keys())[:5])
            raise ValueError(f"the checkpoint has other adapters than this model: {names}")
        self.model.load_state_dict(state_dict, strict=False)


@dataclass(frozen=True)
class WholeOptimizer:
    """An optimizer whose state keeps its types, whatever the types of the parameters are."""

    optimizer: Optimizer

    def state_dict(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        self.optimizer.load_state_dict(state_dict)
        restore_types(self.optimizer, state_dict)


def restore_types(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Give the loaded state of an optimizer its types back.

    torch converts it to the types of the parameters: float32 sums of bfloat16 weights lose bits.
    """
    if not state_dict.keys() >= {"state", "param_groups"}:
        return  # a format of its own, which torch does not convert
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's wraps another optimizer
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    for number, param in zip(numbers, _parameters(inner), strict=True):
        loaded = inner.state.get(param, {})
        for name, value in state_dict["state"].get(number, {}).items():
            current = loaded.get(name)
            both = isinstance(value, Tensor) and isinstance(current, Tensor)
            if both and current.dtype != value.dtype:
                loaded[name] = value.to(current.device)


@dataclass(frozen=True)
class ShardedModel:
    """A model sharded with FSDP2, saved whole by rank 0; all ranks must call the methods."""

    model: nn.Module

    def state_dict(self) -> Mapping[str, Any]:
        from torch.distributed.checkpoint import state_dict as full  # noqa: PLC0415 - slow to load

        return full.get_model_state_dict(self.model, options=_options(self.model))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        from torch.distributed.checkpoint import state_dict as full  # noqa: PLC0415
        from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415

        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # after a forward the outermost parameters are whole
        full.set_model_state_dict(self.model, dict(state_dict), options=_options(self.model))


@dataclass(frozen=True)
class ShardedOptimizer:
    """The optimizer of a sharded model; its state is keyed by parameter names."""

    model: nn.Module
    optimizer: Optimizer

    def state_dict(self) -> Mapping[str, Any]:
        from torch.distributed.checkpoint import state_dict as full  # noqa: PLC0415

        options = _options(self.model)
        return full.get_optimizer_state_dict(self.model, self.optimizer, options=options)

    def load_state_dict(self, state_dict: Any) -> None:
        from torch.distributed.checkpoint import state_dict as full  # noqa: PLC0415

        options = _options(self.model)
        full.set_optimizer_state_dict(self.model, self.optimizer, state_dict, options=options)


def _options(model: nn.Module) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions  # noqa: PLC0415

    adapters = hasattr(model, "peft_config")
    return StateDictOptions(
        full_state_dict=True, cpu_offload=True, ignore_frozen_params=adapters, strict=not adapters
    )


def _unwrap(obj: Any) -> Any:
    while True:
        if isinstance(obj, DistributedDataParallel):
            obj = obj.module
        elif isinstance(obj, nn.Module) and hasattr(obj, "_orig_mod"):
            obj = obj._orig_mod  # noqa: SLF001 - torch.compile has no other way
        else:
            return obj


def _check(name: str, obj: Any) -> None:
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(obj, method, None)):
            raise TypeError(
                f"{name} is of type {type(obj).__name__}, which has no {method}(): give objects "
                "that keep a state, such as a model, an optimizer or a scheduler"
            )


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [obj for group in optimizer.param_groups for obj in group["params"]]


def _model_of(optimizer: Optimizer, models: Iterable[nn.Module], name: str) -> nn.Module:
    wanted = {id(obj) for obj in _parameters(optimizer)}
    for model in models:
        if wanted <= {id(obj) for obj in model.parameters()}:
            return model
    raise TypeError(f"{name} is an optimizer of sharded tensors: give the model they are of, too")
