"""Which part of a program's objects is saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainer.hook.spotd_hook.objects import TrainableParameters, stateful


class Adapted(nn.Linear):
    """A model as PEFT leaves it: partly frozen."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.peft_config: dict[str, Any] = {}
        self.weight.requires_grad_(False)


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
