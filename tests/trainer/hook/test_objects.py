"""Which part of a program's objects is saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainer.hook.spotd_hook.objects import TrainableParameters, restore_types, stateful


class Adapted(nn.Linear):
    """A model as PEFT leaves it: partly frozen."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.peft_config: dict[str, Any] = {}
        self.weight.requires_grad_(False)


@pytest.mark.behaviour(
    "of a PEFT model the trained parameters, on the same frozen weights",
    way="Run",
)
def test_of_adapters_only_what_is_trained() -> None:
    model, other = Adapted(), Adapted()
    saved = stateful({"model": model})["model"]
    assert isinstance(saved, TrainableParameters)
    assert list(saved.state_dict()) == ["bias"]
    frozen = other.weight.clone()
    stateful({"model": other})["model"].load_state_dict(saved.state_dict())
    assert torch.equal(other.bias, model.bias)
    assert torch.equal(other.weight, frozen)
    with pytest.raises(ValueError, match="other adapters than this model: bias, more"):
        saved.load_state_dict({"more": torch.zeros(1)})


def test_what_wraps_a_model_is_not_part_of_its_state() -> None:
    model = nn.Linear(2, 2)
    compiled = nn.Module()
    compiled._orig_mod = model  # as torch.compile does
    assert stateful({"model": compiled})["model"] is model


def test_an_object_without_a_state_is_named() -> None:
    with pytest.raises(TypeError, match=r"loader is of type list, which has no state_dict\(\)"):
        stateful({"loader": []})


def test_the_state_of_an_optimizer_keeps_its_types() -> None:
    """torch's own load_state_dict would make it the type of the parameters."""
    ours, theirs = (nn.Linear(2, 2, dtype=torch.bfloat16) for _ in range(2))
    saved, restored = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (ours, theirs))
    for param in ours.parameters():
        saved.state[param] = {"sum": torch.rand(2), "sign": torch.ones(2, dtype=torch.int8), "n": 3}
    state = saved.state_dict()
    stateful({"optimizer": restored})["optimizer"].load_state_dict(state)
    kept = list(restored.state.values())
    assert [one["sum"].dtype for one in kept] == [torch.float32] * 2
    assert [one["sign"].dtype for one in kept] == [torch.int8] * 2
    assert torch.equal(kept[0]["sum"], state["state"][0]["sum"])
    assert kept[0]["n"] == 3


def test_an_optimizer_with_a_format_of_its_own_is_left_alone() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    restore_types(optimizer, {"fp32": [torch.ones(1)]})
    assert not optimizer.state
