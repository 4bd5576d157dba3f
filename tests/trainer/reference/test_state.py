"""The flat state: the same mathematics as torch's own AdamW, and a snapshot that is complete."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch

from trainer.reference.model import Shape, make_model
from trainer.reference.state import Schedule, TrainState

SHAPE = Shape(layers=2, heads=2, width=16, block=8, dropout=0.0)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    rows = torch.randint(256, (3, SHAPE.block + 1))
    return rows[:, :-1], rows[:, 1:]


def test_it_is_adamw() -> None:
    ours, theirs = make_model(SHAPE, 1), make_model(SHAPE, 1)
    state = TrainState(ours, torch.device("cpu"))
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in theirs.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    for step in range(5):
        torch.manual_seed(step)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert a.grad is not None
            b.grad = torch.randn_like(b)
            a.grad.copy_(b.grad)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        state.update(1e-2, step)
        reference.step()
        reference.zero_grad()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), name


def test_it_learns() -> None:
    model = make_model(SHAPE, 1)
    state = TrainState(model, torch.device("cpu"))
    losses = []
    for step in range(30):
        loss = model(*batch(0))
        torch.autograd.backward(loss)
        state.update(1e-2, step)
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(256), rel=0.05)
    assert losses[-1] < losses[0] / 2


@pytest.mark.req("CKP-15")
def test_a_snapshot_holds_everything() -> None:
    def train(model: torch.nn.Module, state: TrainState, steps: range) -> None:
        for step in steps:
            torch.autograd.backward(model(*batch(step)))
            state.update(1e-2, step)

    model = make_model(SHAPE, 1)
    state = TrainState(model, torch.device("cpu"))
    train(model, state, range(3))
    arena = memoryview(bytearray(state.size))
    counts: list[int] = []
    state.stage(arena, counts.append)
    assert counts == sorted(counts)
    assert counts[-1] == state.size
    train(model, state, range(3, 6))

    other = make_model(SHAPE, 2)
    resumed = TrainState(other, torch.device("cpu"))
    resumed.load(arena)
    train(other, resumed, range(3, 6))
    for a, b in zip(state.flat_tensors(), resumed.flat_tensors(), strict=True):
        assert torch.equal(a, b)


def test_the_layout_names_every_tensor_where_it_lies() -> None:
    model = make_model(SHAPE, 1)
    state = TrainState(model, torch.device("cpu"))
    names = {piece["name"] for piece in state.pieces}
    for name, parameter in model.named_parameters():
        assert {f"model.{name}", f"adamw.mean.{name}", f"adamw.square.{name}"} <= names
        arena = memoryview(bytearray(state.size))
        state.stage(arena)
        place = next(piece for piece in state.pieces if piece["name"] == f"model.{name}")
        assert place["offset"] % 64 == 0
        stored = torch.frombuffer(
            arena, dtype=torch.float32, offset=place["offset"], count=parameter.numel()
        )
        assert torch.equal(stored.view(place["shape"]), parameter.data)
    assert len(names) == len(state.pieces)


def test_the_schedule_warms_up_and_cools_down() -> None:
    schedule = Schedule(peak=1.0, warmup_steps=10, steps=110)
    rates = [schedule.rate(step) for step in range(111)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[110] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def test_an_impossible_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a multiple of"):
        Shape(width=10, heads=3)
