"""A training program's objects, as what can be saved of them and restored. Needs torch,
Python >= 3.10."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


class Stateful(Protocol):
    """Anything that keeps its state so, as most of torch does."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


def stateful(objects: Mapping[str, Any]) -> dict[str, Stateful]:
    """Each as it is to be saved: without what wraps it (DDP, torch.compile), sharded ones whole, of
    adapters (PEFT) what is trained. Raises TypeError for one that has no state."""
    bare = {name: _unwrap(one) for name, one in objects.items()}
    modules = [one for one in bare.values() if isinstance(one, nn.Module)]
    sharded = [module for module in modules if is_sharded(module.parameters())]
    found: dict[str, Stateful] = {}
    for name, one in bare.items():
        if any(one is module for module in sharded):
            found[name] = Sharded(one)
        elif isinstance(one, Optimizer) and is_sharded(_parameters(one)):
            inner = getattr(one, "optimizer", one)  # accelerate's is one, too, around another
            found[name] = ShardedOptimizer(_model_of(inner, sharded, name), inner)
        elif hasattr(one, "peft_config"):
            found[name] = Trained(one)
        else:
            _check(name, one)
            found[name] = one
    return found


def is_sharded(tensors: Iterable[Tensor]) -> bool:
    return any(type(getattr(one, "data", one)).__name__ == "DTensor" for one in tensors)


@dataclass(frozen=True)
class Trained:
    """Of a model most of which is frozen, the parameters that are trained, and its buffers."""

    model: nn.Module

    def state_dict(self) -> dict[str, Any]:
        every = self.model.named_parameters(remove_duplicate=False)
        frozen = {name for name, one in every if not one.requires_grad}
        return {name: one for name, one in self.model.state_dict().items() if name not in frozen}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raises ValueError for what the model has not, or has and did not get."""
        wanted = self.state_dict().keys()
        if wanted != state_dict.keys():
            names = ", ".join(sorted(wanted ^ state_dict.keys())[:5])
            raise ValueError(f"the checkpoint has other adapters than this model: {names}")
        self.model.load_state_dict(state_dict, strict=False)


@dataclass(frozen=True)
class Sharded:
    """A model of FSDP2: brought together on rank 0 to be saved, for which all ranks call."""

    model: nn.Module

    def state_dict(self) -> Mapping[str, Any]:
        from torch.distributed.checkpoint import state_dict as full  # noqa: PLC0415 - slow to load

        return full.get_model_state_dict(self.model, options=_options(self.model))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        from torch.distributed.checkpoint import state_dict as full  # noqa: PLC0415

        full.set_model_state_dict(self.model, dict(state_dict), options=_options(self.model))


@dataclass(frozen=True)
class ShardedOptimizer:
    """The optimizer of such a model; its state has the parameters' names."""

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


def _unwrap(one: Any) -> Any:
    while True:
        if isinstance(one, DistributedDataParallel):
            one = one.module
        elif isinstance(one, nn.Module) and hasattr(one, "_orig_mod"):
            one = one._orig_mod  # noqa: SLF001 - torch.compile has no other way
        else:
            return one


def _check(name: str, one: Any) -> None:
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(one, method, None)):
            raise TypeError(
                f"{name} is of type {type(one).__name__}, which has no {method}(): give objects "
                "that keep a state, such as a model, an optimizer or a scheduler"
            )


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _model_of(optimizer: Optimizer, models: Iterable[nn.Module], name: str) -> nn.Module:
    wanted = {id(one) for one in _parameters(optimizer)}
    for model in models:
        if wanted <= {id(one) for one in model.parameters()}:
            return model
    raise TypeError(f"{name} is an optimizer of sharded tensors: give the model they are of, too")
