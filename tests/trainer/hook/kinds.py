"""Small trainings of many kinds in one loop, each with a state of its own. Not a test itself.

    kinds.py [--plain] [--leave-at STEP] [--forget] [--only KIND]

All are steps of one `spotd_hook.Run`, so that one interruption serves for all. At step `--leave-at`
the program asks itself to stop, as a machine that ends does. Writes the result of each kind to
kinds.json. With `--forget`, what a kind is about is not restored; the result is then another one,
or the kind shows nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler, swa_utils

STEPS = 20


@dataclass
class Kind:
    """One small training.

    `forgets` names the objects that it is about, each with the keys of its state; no keys: all.
    """

    objects: dict[str, Any]
    step: Callable[[int], None]
    result: Callable[[], Any]
    forgets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


KINDS: dict[str, Callable[[], Kind]] = {}


def kind(make: Callable[[], Kind]) -> Callable[[], Kind]:
    KINDS[make.__name__] = make
    return make


def batch(step: int, *shape: int) -> Tensor:
    return torch.randn(*(shape or (8, 4)), generator=torch.Generator().manual_seed(step))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(model: Callable[..., Tensor], step: int) -> Tensor:
    target = batch(step + 1000, 8, 2).abs()
    return (model(batch(step)).float() - target).square().mean()


def digest(value: Any) -> str:
    """A text that tells any two states apart, by their bits."""
    if isinstance(value, Tensor):
        tensor = value.detach().contiguous().reshape(-1)
        raw = tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        value = f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(raw).hexdigest()}"
    elif isinstance(value, Mapping):
        value = [(str(key), digest(item)) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        value = [digest(item) for item in value]
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def fit(
    model: nn.Module,
    optimizer: optim.Optimizer,
    scheduler: Any = None,
    *,
    forgets: Mapping[str, tuple[str, ...]],
    more: Mapping[str, Any] | None = None,
    then: Callable[[int, Tensor], None] = lambda _step, _loss: None,
) -> Kind:
    """The usual kind: a step of the optimizer, and one of the scheduler if there is one."""
    rates: list[Any] = []

    def step(number: int) -> None:
        loss = loss_of(model, number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                scheduler.step(loss.item())
            else:
                scheduler.step()
        then(number, loss)

    def result() -> Any:
        rates[:] = [float(group["lr"]) for group in optimizer.param_groups]
        return [digest(model.state_dict()), rates]

    objects = {"model": model, "optimizer": optimizer, **(more or {})}
    if scheduler is not None:
        objects["scheduler"] = scheduler
    return Kind(objects, step, result, forgets)


OPTIMIZER: Mapping[str, tuple[str, ...]] = {"optimizer": ()}
SCHEDULER: Mapping[str, tuple[str, ...]] = {"scheduler": ()}

# --- optimizers


@kind
def adamw() -> Kind:
    model = net()
    return fit(model, optim.AdamW(model.parameters(), lr=0.05, amsgrad=True), forgets=OPTIMIZER)


@kind
def adamw_foreach() -> Kind:
    model = net()
    return fit(model, optim.AdamW(model.parameters(), lr=0.05, foreach=True), forgets=OPTIMIZER)


@kind
def adamw_fused() -> Kind:
    model = net()
    return fit(model, optim.AdamW(model.parameters(), lr=0.05, fused=True), forgets=OPTIMIZER)


@kind
def sgd_momentum() -> Kind:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    return fit(model, optimizer, forgets=OPTIMIZER)


def _other(name: str, **arguments: Any) -> None:
    def make() -> Kind:
        model = net()
        optimizer = getattr(optim, name)(model.parameters(), **arguments)
        return fit(model, optimizer, forgets=OPTIMIZER)

    KINDS[f"optimizer_{name.lower()}"] = make


_other("Adafactor", lr=0.05)
_other("Adagrad", lr=0.05)
_other("ASGD", lr=0.05, t0=3)
_other("NAdam", lr=0.05)
_other("RAdam", lr=0.05)
_other("RMSprop", lr=0.05, centered=True, momentum=0.5)
_other("Rprop", lr=0.05)


@kind
def lbfgs() -> Kind:
    model = net()
    optimizer = optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)

    def step(number: int) -> None:
        del number

        def closure() -> float:
            optimizer.zero_grad()
            loss = loss_of(model, 3)
            loss.backward()
            return float(loss.detach())

        optimizer.step(closure)

    result = lambda: digest(model.state_dict())  # noqa: E731
    return Kind({"model": model, "optimizer": optimizer}, step, result, OPTIMIZER)


@kind
def param_groups() -> Kind:
    """Each group has a rate of its own, which the loop itself lowers."""
    model = net()
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": model[2].parameters(), "lr": 0.01, "weight_decay": 0.1},
    ]

    def then(step: int, _: Tensor) -> None:
        optimizer.param_groups[step % 2]["lr"] *= 0.9

    optimizer = optim.SGD(groups)
    return fit(model, optimizer, then=then, forgets=OPTIMIZER)


@kind
def state_by_and_by() -> Kind:
    """Parameters that get a gradient, and so a state of the optimizer, only later."""
    model = nn.ModuleList([nn.Linear(4, 2) for _ in range(4)])
    optimizer = optim.AdamW(model.parameters(), lr=0.05)

    def step(number: int) -> None:
        loss = torch.stack([loss_of(one, number) for one in model[: 1 + number // 5]]).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    result = lambda: [digest(model.state_dict()), len(optimizer.state)]  # noqa: E731
    return Kind({"model": model, "optimizer": optimizer}, step, result, OPTIMIZER)


@kind
def rate_is_a_tensor() -> Kind:
    model = net()
    optimizer = optim.AdamW(model.parameters(), lr=torch.tensor(0.05), foreach=False)

    def then(_: int, loss: Tensor) -> None:
        del loss
        optimizer.param_groups[0]["lr"].mul_(0.9)

    return fit(model, optimizer, then=then, forgets=OPTIMIZER)


@kind
def several_optimizers() -> Kind:
    """Two models that are trained in turn, as in adversarial training."""
    first, second = net(), net()
    ours, theirs = optim.AdamW(first.parameters()), optim.RMSprop(second.parameters())

    def step(number: int) -> None:
        for model, optimizer in ((first, ours), (second, theirs)):
            optimizer.zero_grad()
            (loss_of(model, number) - 0.1 * loss_of(first, number + 1)).backward()
            optimizer.step()

    result = lambda: digest([first.state_dict(), second.state_dict()])  # noqa: E731
    objects = {"first": first, "second": second, "ours": ours, "theirs": theirs}
    return Kind(objects, step, result, {"theirs": ()})


class Exact(optim.Optimizer):
    """Keeps float32 sums and a byte for each of its bfloat16 parameters."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state["whole"] = param.float()
                    state["sign"] = torch.zeros_like(param, dtype=torch.int8)
                state["sign"] += param.grad.sign().to(torch.int8)
                state["whole"] -= group["lr"] * (param.grad.float() + state["sign"] * 1e-4)
                param.copy_(state["whole"])


@kind
def state_of_another_type() -> Kind:
    model = net().to(torch.bfloat16)
    optimizer = Exact(model.parameters())
    made = fit(nn.Sequential(Cast(torch.bfloat16), model), optimizer, forgets=OPTIMIZER)
    made.result = lambda: digest([model.state_dict(), optimizer.state_dict()])
    return made


# --- schedulers


def _scheduler(name: str, make: Callable[[optim.Optimizer], Any]) -> None:
    def build() -> Kind:
        model = net()
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        return fit(model, optimizer, make(optimizer), forgets=SCHEDULER)

    KINDS[f"scheduler_{name}"] = build


_scheduler("lambda", lambda one: lr_scheduler.LambdaLR(one, lambda step: 0.9**step))
_scheduler("warm_restarts", lambda one: lr_scheduler.CosineAnnealingWarmRestarts(one, 3, 2))
_scheduler("one_cycle", lambda one: lr_scheduler.OneCycleLR(one, max_lr=0.3, total_steps=STEPS + 1))
_scheduler("cyclic", lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.1, step_size_up=3))
_scheduler("plateau", lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=1, threshold=0.2))
_scheduler("multi_step", lambda one: lr_scheduler.MultiStepLR(one, [3, 9, 9, 15], gamma=0.5))
_scheduler("polynomial", lambda one: lr_scheduler.PolynomialLR(one, total_iters=STEPS))
_scheduler("swa", lambda one: swa_utils.SWALR(one, swa_lr=0.5, anneal_epochs=15))
_scheduler(
    "sequential",
    lambda one: lr_scheduler.SequentialLR(
        one,
        [lr_scheduler.LinearLR(one, 0.1, total_iters=5), lr_scheduler.ExponentialLR(one, 0.8)],
        milestones=[5],
    ),
)
_scheduler(
    "chained",
    lambda one: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(one, 0.1, total_iters=12), lr_scheduler.ExponentialLR(one, 0.9)]
    ),
)


# --- what belongs to training beside model, optimizer and scheduler


@kind
def scaler() -> Kind:
    model = net()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    scales: list[float] = []

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = loss_of(model, number) * (float("inf") if number == 13 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales[:] = [scaler.get_scale()]

    result = lambda: [digest(model.state_dict()), scales]  # noqa: E731
    objects = {"model": model, "optimizer": optimizer, "scaler": scaler}
    return Kind(objects, step, result, {"scaler": ()})


def _averaged(name: str, average: Callable[[nn.Module], swa_utils.AveragedModel]) -> None:
    def make() -> Kind:
        model = net()
        mean = average(model)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        made = fit(
            model,
            optimizer,
            more={"mean": mean},
            then=lambda *_: mean.update_parameters(model),
            forgets={"mean": ()},
        )
        made.result = lambda: digest(mean.state_dict())
        return made

    KINDS[name] = make


_averaged("moving_average", lambda model: swa_utils.AveragedModel(model, multi_avg_fn=EMA))
_averaged("stochastic_average", swa_utils.AveragedModel)
EMA = swa_utils.get_ema_multi_avg_fn(0.9)


class Counts:
    """An object of the program's own: numbers, texts, nested lists and arrays."""

    def __init__(self) -> None:
        self.best, self.patience = float("inf"), 3
        self.history: list[tuple[int, float]] = []
        self.seen = np.zeros(4, dtype=np.int64)
        self.by_name: dict[Any, Any] = {}
        self.in_order: dict[str, int] = {}

    def add(self, step: int) -> None:
        value = float(batch(step, 1))
        self.patience -= value > self.best
        self.best = min(self.best, value)
        self.history.append((step, value))
        self.seen[step % 4] += 1
        self.in_order = {f"{(7 * step) % 10}": step, **self.in_order}
        self.by_name[(step % 3, "of")] = {"last": step, "raw": bytes([step])}

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@kind
def object_of_its_own() -> Kind:
    counts = Counts()
    return Kind(
        {"counts": counts}, counts.add, lambda: repr(sorted(vars(counts).items())), {"counts": ()}
    )


class Loader:
    """Rows in an order drawn for each epoch, with a partial last batch."""

    def __init__(self) -> None:
        self.epoch, self.at = 0, 0

    def batch(self) -> list[int]:
        order = random.Random(self.epoch).sample(range(23), 23)
        rows = order[self.at : self.at + 4]
        self.at += 4
        if self.at >= len(order):
            self.epoch, self.at = self.epoch + 1, 0
        return rows

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


@kind
def loader_with_a_state() -> Kind:
    """Given as `data=`; which rows were seen is kept beside it."""
    loader, seen = Loader(), Counts()
    step = lambda _: seen.history.append((len(seen.history), str(loader.batch())))  # noqa: E731
    return Kind({"data": loader, "seen": seen}, step, lambda: seen.history, {"data": ()})


# --- random numbers


def _drawn(name: str, draw: Callable[[], float]) -> None:
    def make() -> Kind:
        drawn = Counts()
        step = lambda number: drawn.history.append((number, draw()))  # noqa: E731
        return Kind({"drawn": drawn}, step, lambda: drawn.history)

    KINDS[f"random_{name}"] = make


_drawn("torch", lambda: float(torch.rand(1)))
_drawn("python", random.random)
_drawn("numpy", lambda: float(np.random.random()))


@kind
def dropout() -> Kind:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    return fit(model, optim.SGD(model.parameters(), lr=0.05), forgets={})


# --- models


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, rows: Tensor) -> Tensor:
        return rows.to(self.dtype)


@kind
def batch_norm() -> Kind:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.2), nn.Linear(8, 2))
    forgets = {"model": ("1.running_mean", "1.running_var", "1.num_batches_tracked")}
    return fit(model, optim.SGD(model.parameters(), lr=0.05), forgets=forgets)


@kind
def spectral_norm() -> Kind:
    """The vectors of its power iteration are buffers."""
    model = net()
    nn.utils.parametrizations.spectral_norm(model[0])
    forgets = {"model": ("0.parametrizations",)}
    return fit(model, optim.SGD(model.parameters(), lr=0.05), forgets=forgets)


@kind
def weight_norm() -> Kind:
    model = net()
    nn.utils.parametrizations.weight_norm(model[2])
    forgets = {"model": ("2.parametrizations.weight.original0",)}
    return fit(model, optim.SGD(model.parameters(), lr=0.05), forgets=forgets)


@kind
def frozen() -> Kind:
    """A frozen layer whose weights no later program draws again."""
    model = net()
    with torch.no_grad():
        model[0].weight.copy_(
            torch.rand(8, 4, generator=torch.Generator().manual_seed(os.getpid()))
        )
    model[0].requires_grad_(False)
    kept = Counts()
    kept.by_name["first"] = digest(model[0].state_dict())
    trained = [one for one in model.parameters() if one.requires_grad]
    made = fit(model, optim.SGD(trained, lr=0.05), forgets={"model": ("0.",)}, more={"kept": kept})
    made.result = lambda: [
        kept.by_name["first"] == digest(model[0].state_dict()),
        [one.requires_grad for one in model.parameters()],
    ]
    return made


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, rows: Tensor) -> Tensor:
        numbers = (rows.abs() * 3).long().clamp(max=7)
        return self.head(self.embed(numbers).mean(dim=1))[:, :2]


@kind
def tied() -> Kind:
    model = Tied()
    made = fit(model, optim.AdamW(model.parameters(), lr=0.05), forgets={"model": ()})
    made.result = lambda: [
        digest(model.state_dict()),
        model.head.weight is model.embed.weight,
        model.head.weight.data_ptr() == model.embed.weight.data_ptr(),
    ]
    return made


class Extra(nn.Linear):
    """A module that has more of a state than tensors."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.calls: dict[str, int] = {"forward": 0}

    def forward(self, rows: Tensor) -> Tensor:
        self.calls["forward"] += 1
        return super().forward(rows) * (1 + 0.01 * self.calls["forward"])

    def get_extra_state(self) -> Any:
        return self.calls

    def set_extra_state(self, state: Any) -> None:
        self.calls = dict(state)


@kind
def extra_state() -> Kind:
    model = Extra()
    forgets = {"model": ("_extra_state",)}
    return fit(model, optim.SGD(model.parameters(), lr=0.05), forgets=forgets)


class Renamed(nn.Linear):
    """A model whose state has other names than its parameters."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        return {f"inner.{name}": value for name, value in state.items()}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        plain = {name.removeprefix("inner."): value for name, value in state_dict.items()}
        return super().load_state_dict(plain, *args, **kwargs)


@kind
def state_dict_of_its_own() -> Kind:
    model = Renamed(4, 2)
    return fit(model, optim.SGD(model.parameters(), lr=0.05), forgets={"model": ("inner.",)})


class Mean(nn.Module):
    """A buffer that training changes, and that the module keeps out of its state."""

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=persistent)

    def forward(self, rows: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * rows.detach().mean(dim=0))
        return rows - self.mean


@kind
def buffer() -> Kind:
    model = nn.Sequential(Mean(persistent=True), nn.Linear(4, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    return fit(model, optimizer, forgets={"model": ("0.mean",)})


@kind
def buffer_that_is_not_persistent() -> Kind:
    model = nn.Sequential(Mean(persistent=False), nn.Linear(4, 2))
    return fit(model, optim.SGD(model.parameters(), lr=0.05), forgets={})


@kind
def gradients_over_several_steps() -> Kind:
    """The optimizer steps every third step of the loop only: gradients are no state."""
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.05)

    def step(number: int) -> None:
        loss_of(model, number).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()

    result = lambda: digest(model.state_dict())  # noqa: E731
    return Kind({"model": model, "optimizer": optimizer}, step, result)


@kind
def gradients_within_a_step() -> Kind:
    model = net()
    optimizer = optim.AdamW(model.parameters(), lr=0.05)

    def step(number: int) -> None:
        optimizer.zero_grad()
        for part in range(3):
            (loss_of(model, 3 * number + part) / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    result = lambda: digest(model.state_dict())  # noqa: E731
    return Kind({"model": model, "optimizer": optimizer}, step, result, OPTIMIZER)


def _typed(name: str, dtype: torch.dtype) -> None:
    def make() -> Kind:
        model = net().to(dtype)
        whole = nn.Sequential(Cast(dtype), model)
        return fit(whole, optim.SGD(whole.parameters(), lr=0.05, momentum=0.9), forgets=OPTIMIZER)

    KINDS[f"weights_{name}"] = make


_typed("bfloat16", torch.bfloat16)
_typed("float16", torch.float16)
_typed("float64", torch.float64)


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(4, 2, dtype=torch.complex64))

    def forward(self, rows: Tensor) -> Tensor:
        return (rows.to(torch.complex64) @ self.turn).abs()


@kind
def weights_complex() -> Kind:
    model = Waves()
    return fit(model, optim.AdamW(model.parameters(), lr=0.05), forgets=OPTIMIZER)


class Packed(nn.Module):
    """Weights in one byte each, with their scale, that are set anew in each step."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.whole = nn.Linear(4, 2)
        self.register_buffer("packed", torch.zeros(2, 4).to(dtype))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, rows: Tensor) -> Tensor:
        stale = self.packed.float() * self.scale  # of the step before
        with torch.no_grad():
            self.scale.copy_(self.whole.weight.abs().max() / 100)
            self.packed.copy_((self.whole.weight / self.scale).to(self.packed.dtype))
        return self.whole(rows) + 0.1 * rows @ stale.T


def _packed(name: str, dtype: torch.dtype) -> None:
    def make() -> Kind:
        model = Packed(dtype)
        optimizer = optim.SGD(model.parameters(), lr=0.05)
        return fit(model, optimizer, forgets={"model": ("packed",)})

    KINDS[f"weights_{name}"] = make


_packed("int8", torch.int8)
_packed("float8", torch.float8_e4m3fn)


@kind
def sparse_embedding() -> Kind:
    """An embedding with sparse gradients, and the optimizer for them."""
    model = nn.Sequential(Rounded(), nn.Embedding(16, 2, sparse=True))
    optimizer = optim.SparseAdam(list(model.parameters()), lr=0.05)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(batch(number)).square().mean().backward()
        optimizer.step()

    result = lambda: digest([model.state_dict(), optimizer.state_dict()])  # noqa: E731
    return Kind({"model": model, "optimizer": optimizer}, step, result, OPTIMIZER)


class Rounded(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return (rows.abs() * 5).long().clamp(max=15)


@kind
def compiled() -> Kind:
    model = torch.compile(net(), backend="eager")
    return fit(model, optim.AdamW(model.parameters(), lr=0.05), forgets={"model": ()})


@kind
def lazy_layers() -> Kind:
    """Layers that get their shape from the first batch; the resumed program has seen none."""
    model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2))
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return fit(model, optimizer, forgets=OPTIMIZER)


@kind
def channels_last() -> Kind:
    model = nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last)
    optimizer = optim.AdamW(model.parameters(), lr=0.05)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(batch(number, 2, 3, 6, 6)).square().mean().backward()
        optimizer.step()

    def result() -> Any:
        strides = [list(state["exp_avg"].stride()) for state in optimizer.state.values()]
        return [digest(model.state_dict()), list(model.weight.stride()), strides]

    return Kind({"model": model, "optimizer": optimizer}, step, result, {"model": ()})


# --- the program


def forget(one: Any, keys: tuple[str, ...]) -> None:
    """Let `one` keep what it begins with, whatever is restored."""
    one = getattr(one, "_orig_mod", one)

    class Forgetful(type(one)):  # type: ignore[misc]  # an attribute would be part of its state
        def load_state_dict(self, state: Any, *args: Any, **kwargs: Any) -> Any:
            if not keys:
                return None
            fresh = self.state_dict()
            kept = {name: fresh[name] if name.startswith(keys) else state[name] for name in state}
            return super().load_state_dict(kept, *args, **kwargs)

    one.__class__ = Forgetful


def make_all(*, forgetful: bool, only: str) -> dict[str, Kind]:
    made = {}
    for name, make in KINDS.items():
        if only and name != only:
            continue
        torch.manual_seed(len(name))
        made[name] = one = make()
        for subject, keys in one.forgets.items() if forgetful else ():
            forget(one.objects[subject], keys)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--leave-at", type=int, default=-1)
    parser.add_argument("--forget", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import spotd_hook

    kinds = make_all(forgetful=arguments.forget, only=arguments.only)
    objects = {
        "data" if subject == "data" else f"{name}_{subject}": one
        for name, made in kinds.items()
        for subject, one in made.objects.items()
    }
    with spotd_hook.Run(**objects) as run:
        if arguments.forget:
            spotd_hook.run.rng_state.restore = lambda _: None
        for step in run.steps(STEPS):
            if step == arguments.leave_at:
                os.kill(os.getpid(), signal.SIGTERM)
            for made in kinds.values():
                made.step(step)
    results = {name: made.result() for name, made in kinds.items()}
    Path("kinds.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
