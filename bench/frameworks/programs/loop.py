"""A training loop of one's own, with `spotd_hook.Run`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from bench.frameworks.programs.place import (
    digest,
    digest_optimizer,
    reach,
    read_arguments,
    write_result,
)

FEATURES = 8


class Alone:
    """The loop's `Run` where there is no spotd."""

    def __init__(self, *, seed: int | None = None, **_: Any) -> None:
        self.seed, self.done = seed, 0

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def steps(self, total: int) -> Iterator[int]:
        for step in range(total):
            if self.seed is not None:
                from trainer.hook.spotd_hook import rng_state

                rng_state.seed(self.seed, step, 0)
            yield step
            self.done = step + 1

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        return iter(batches)

    @contextlib.contextmanager
    def evaluation(self, **_: Any) -> Iterator[None]:
        yield

    def report(self, loss: Any, tokens: int = 0) -> None:
        pass

    def save(self) -> None:
        pass


class Book:
    """What the loop keeps: losses, evaluations, rates, the best model, and its patience."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.evaluations: list[list[float]] = []
        self.rates: list[float] = []
        self.best: dict[str, Tensor] = {}
        self.best_loss, self.waited = float("inf"), 0

    def see(self, step: int, loss: float, model: nn.Module) -> None:
        self.evaluations.append([step, loss])
        self.waited += 1
        if loss < self.best_loss:
            self.best_loss, self.waited = loss, 0
            self.best = {name: one.clone() for name, one in model.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Rows(torch.utils.data.Dataset[Tensor]):
    """Rows by their number, with noise of the process that reads them."""

    def __init__(self, count: int, noise: float) -> None:
        self.rows = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(4))
        self.noise = noise

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        row = self.rows[index]
        return row + self.noise * torch.randn(FEATURES) if self.noise else row


def optimizer_of(settings: dict[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    rate = settings["rate"]
    match settings["optimizer"]:
        case "sgd":
            return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, nesterov=True)
        case "amsgrad":
            return torch.optim.Adam(model.parameters(), lr=rate, amsgrad=True)
        case "rmsprop":
            return torch.optim.RMSprop(model.parameters(), lr=rate, momentum=0.5)
    return torch.optim.AdamW(model.parameters(), lr=rate)


def scheduler_of(settings: dict[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    total = settings["steps"]
    match settings["scheduler"]:
        case "plateau":
            return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        case "one cycle":
            return lr_scheduler.OneCycleLR(optimizer, settings["rate"], total_steps=total + 1)
        case "warm restarts":
            return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5)
        case "sequential":
            warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
            after = lr_scheduler.ExponentialLR(optimizer, 0.9)
            return lr_scheduler.SequentialLR(optimizer, [warmup, after], [4])
    return lr_scheduler.StepLR(optimizer, 6, 0.7)


def loader_of(settings: dict[str, Any]) -> Any:
    """Return a loader that keeps its place; None where batches are made from the step's number."""
    if settings["data"] == "computed":
        return None
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows = Rows(settings["rows"], settings["noise"])
    return StatefulDataLoader(
        rows,
        batch_size=settings["batch"],
        shuffle=True,
        num_workers=settings["workers"],
        multiprocessing_context="fork" if settings["workers"] else None,
    )


def batches_of(settings: dict[str, Any], loader: Any, done: int) -> Iterator[Tensor]:
    if loader is None:
        return computed_batches(settings, done * settings["accumulation"])
    return itertools.chain(iter(loader), itertools.chain.from_iterable(itertools.repeat(loader)))


def computed_batches(settings: dict[str, Any], number: int) -> Iterator[Tensor]:
    while True:
        generator = torch.Generator().manual_seed(number)
        yield torch.randn(settings["batch"], FEATURES, generator=generator)
        number += 1


class Loop:
    """The model, and everything else that the training changes."""

    def __init__(self, settings: dict[str, Any], *, plain: bool) -> None:
        self.settings, self.book = settings, Book()
        self.model = nn.Sequential(
            nn.Linear(FEATURES, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, 1),
        )
        self.optimizer = optimizer_of(settings, self.model)
        self.scheduler = scheduler_of(settings, self.optimizer)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.loader = loader_of(settings)
        objects = {
            name: getattr(self, name)
            for name in ("model", "optimizer", "scheduler", "average", "book")
            if name not in settings["forgotten"]
        }
        run_of = Alone
        if not plain:
            import spotd_hook

            run_of = spotd_hook.Run
        self.run = run_of(seed=settings["step_seed"], data=self.loader, **objects)

    def train(self) -> None:
        settings, run = self.settings, self.run
        batches = run.batches(batches_of(settings, self.loader, run.done))
        for step in run.steps(settings["steps"]):
            evaluates = step > 0 and step % settings["eval_steps"] == 0
            if evaluates and settings["evaluates"] == "first":
                with run.evaluation(at_start=True):
                    loss = self.evaluate(step)
                self.take(step, loss)
            if self.book.waited > settings["patience"]:
                break
            run.report(self.step(step, batches))
            if (step + 1) % settings["eval_steps"] == 0 and settings["evaluates"] == "last":
                self.take(step + 1, self.evaluate(step + 1))
            if settings["save_steps"] and (step + 1) % settings["save_steps"] == 0:
                reach("epoch", step + 1)

    def step(self, step: int, batches: Iterator[Tensor]) -> Tensor:
        total = torch.zeros(())
        for _ in range(self.settings["accumulation"]):
            rows = next(batches)
            reach("step", step)
            loss = nn.functional.mse_loss(self.model(rows), rows.square().sum(dim=1, keepdim=True))
            (loss / self.settings["accumulation"]).backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.model)
        if self.settings["scheduler"] != "plateau":
            self.scheduler.step()
        self.book.losses.append(total.item())
        self.book.rates.append(self.optimizer.param_groups[0]["lr"])
        return total

    def evaluate(self, step: int) -> float:
        """Return the loss of the model, with its dropout: an evaluation that draws numbers."""
        total = 0.0
        for number in range(3):
            reach("evaluation", step)
            rows = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(1000 + number))
            with torch.no_grad():
                mask = (torch.rand(8, 1) > 0.1).float()
                errors = self.model[0](rows).square().mean(dim=1, keepdim=True)
                total += float((errors * mask).sum())
        return total

    def take(self, step: int, loss: float) -> None:
        self.book.see(step, loss, self.model)
        if self.settings["scheduler"] == "plateau":
            self.scheduler.step(loss)


def main() -> None:
    settings, plain = read_arguments()
    torch.manual_seed(settings["seed"])
    loop = Loop(settings, plain=plain)
    with loop.run:
        loop.train()
    book = loop.book
    write_result(
        {
            "losses": book.losses,
            "evaluations": book.evaluations,
            "rates": book.rates,
            "weights": digest(loop.model.state_dict()),
            "optimizer": digest_optimizer(loop.optimizer),
            "average": digest(loop.average.state_dict()),
            "best": [digest(book.best), book.best_loss],
        }
    )


if __name__ == "__main__":
    main()
