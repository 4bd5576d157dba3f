"""Saved values are restored bit for bit."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainer.hook.spotd_hook import rng_state
from trainer.hook.spotd_hook.layout import ALIGN, lay_out, read_tensors, stage
from trainer.hook.spotd_hook.state_tree import StateError, flatten_state, unflatten_state

VALUES: Any = {
    "state": {0: {"step": torch.tensor(3.0), "moments": torch.randn(5, 3).T}},
    "groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1], "foreach": None}],
    "best": math.inf,
    "milestones": Counter({30: 2}),
    "$odd": {"$tensor": "no tensor"},
    "raw": b"\\x00\\xff",
    "nothing": b"",
    "empty": torch.empty(0, 4, dtype=torch.int64),
    "flags": torch.tensor([True, False]),
    "half": torch.randn(7).to(torch.bfloat16),
    "eight": torch.randn(9).to(torch.float8_e4m3fn),
    "array": np.arange(6, dtype=np.uint32).reshape(2, 3),
    "number": np.int64(7),
}


def there_and_back(value: Any) -> Any:
    tree, tensors = flatten_state(value, "x")
    layout, filled = lay_out(tensors), list[int]()
    memory = memoryview(bytearray(layout.size))
    stage(tensors, layout, memory, filled.append)
    assert all(piece["offset"] % ALIGN == 0 for piece in layout.pieces)
    assert filled == sorted(filled)
    assert filled[-1] <= layout.size
    return unflatten_state(json.loads(json.dumps(tree)), read_tensors(layout.pieces, memory))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        raw = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (a, b)]
        return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(*raw)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.behaviour(
    "empty, boolean and non-contiguous tensors, bytes, arrays, counters, infinities",
    way="Run",
)
@pytest.mark.parametrize("name", VALUES)
def test_each_kind_comes_back(name: str) -> None:
    value = {name: VALUES[name]}
    restored = there_and_back({**value, "z": torch.ones(1)})
    assert same(value[name], restored[name])
    assert type(restored[name]) is type(value[name]) or name == "number"


@pytest.mark.behaviour("numbers that are NaN", way="Run")
def test_nan_stays_nan() -> None:
    assert math.isnan(there_and_back([math.nan, torch.ones(1)])[0])


def test_names_of_tensors_tell_where_they_were_and_none_is_there_twice() -> None:
    state = {"a": {"b": torch.zeros(1)}, "a.b": torch.ones(2)}
    _, tensors = flatten_state(state, "model")
    assert list(tensors) == ["model.a.b", "model.a.b'"]


@pytest.mark.behaviour("a state that cannot be saved is refused by name", way="Run")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"lr": {"f": open}}, r"x.lr.f is of type builtin_function_or_method, which cannot"),
        ({"w": torch.eye(2).to_sparse()}, "x.w is a sharded or sparse tensor"),
        ({"o": np.array([None])}, "x.o is an array that torch has no type for"),
        ({"m": torch.empty(2, device="meta")}, "x.m is a meta tensor, which cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_named(value: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        flatten_state(value, "x")


@pytest.mark.behaviour("a state that cannot be saved is refused by name", way="Run")
@pytest.mark.filterwarnings("ignore:.*quantize")
def test_a_quantized_tensor_is_refused_with_what_to_give_instead() -> None:
    """torch copies it into memory of the same type by dereferencing what is not there."""
    quantized = torch.quantize_per_tensor(torch.randn(6), 0.1, 3, torch.qint8)
    with pytest.raises(StateError, match=r"x\.q is a quantized .*the integers and the scale"):
        flatten_state({"q": quantized}, "x")


def test_the_memory_format_of_a_tensor_comes_back() -> None:
    value = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    restored = there_and_back({"x": value, "t": torch.arange(6).reshape(2, 3).T})
    assert restored["x"].stride() == value.stride()
    assert restored["t"].stride() == (1, 3)
    assert same(restored["x"], value)
    with_gaps = torch.arange(12).reshape(3, 4)[:, ::2]
    assert there_and_back([with_gaps])[0].is_contiguous()


def test_the_order_of_a_dictionary_comes_back() -> None:
    value = {"b": 1, "a": {"z": 2, "y": torch.ones(1), "x": 3}, "c": {"f": 4, "g": 5}}
    tree, tensors = flatten_state(value, "x")
    sorted_json = json.loads(json.dumps(tree, sort_keys=True))
    restored = unflatten_state(sorted_json, tensors)
    assert list(restored) == ["b", "a", "c"]
    assert list(restored["a"]) == ["z", "y", "x"]
    assert same(restored, value)


@pytest.mark.req("CKP-26")
def test_the_state_of_a_sharded_model_is_refused_with_what_to_give_instead(tmp_path: Path) -> None:
    """One rank's part of the state is not the model."""
    init = f"file://{tmp_path}/meet"
    distributed.init_process_group("gloo", init_method=init, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = nn.Linear(4, 4)
        fully_shard(model, mesh=mesh)
        with pytest.raises(StateError, match=r"model.weight is a sharded .*give the model and its"):
            flatten_state(model.state_dict(), "model")
    finally:
        distributed.destroy_process_group()


def test_a_tree_of_a_newer_spotd_or_without_its_tensors_is_no_state() -> None:
    with pytest.raises(ValueError, match=r"not known here: \$new"):
        unflatten_state({"$new": 1}, {})
    with pytest.raises(ValueError, match=r"no tensor 'x\.w'"):
        unflatten_state({"$tensor": "x.w"}, {})
    with pytest.raises(ValueError, match="no tensors of type 'int300'"):
        read_tensors([{"name": "w", "dtype": "int300", "shape": [1], "offset": 0}], memoryview(b""))


def test_random_generators_go_on() -> None:
    state = there_and_back(rng_state.capture())
    expected = draw()
    rng_state.restore(state)
    assert draw() == expected


def test_a_seeded_step_is_a_function_of_its_number_and_rank() -> None:
    drawn = []
    for arguments in ((1, 5, 0), (1, 6, 0), (1, 5, 1), (1, 5, 0)):
        rng_state.seed(*arguments)
        drawn.append(draw())
    assert drawn[0] == drawn[3]
    assert len(set(drawn)) == 3


def draw() -> tuple[float, ...]:
    import random

    return torch.rand(1).item(), random.random(), float(np.random.random())
