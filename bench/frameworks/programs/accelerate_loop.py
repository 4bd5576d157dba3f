"""A loop with accelerate, as its documentation writes one, and `spotd_hook.Run`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import Tensor, nn

from bench.frameworks.programs.loop import (
    FEATURES,
    Alone,
    Book,
    Rows,
    optimizer_of,
    scheduler_of,
)
from bench.frameworks.programs.place import (
    digest,
    digest_optimizer,
    reach,
    read_arguments,
    write_result,
)


class Loop:
    """The prepared objects, and what the training changes."""

    def __init__(self, settings: dict[str, Any], *, plain: bool) -> None:
        self.settings, self.book = settings, Book()
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=settings["accumulation"],
            mixed_precision=settings["precision"],
            step_scheduler_with_optimizer=False,
            dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        )
        model = nn.Sequential(
            nn.Linear(FEATURES, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
        )
        optimizer = optimizer_of(settings, model)
        rows = Rows(settings["rows"], 0.0)
        loader = torch.utils.data.DataLoader(
            rows, settings["batch"], shuffle=True, num_workers=settings["workers"], drop_last=True
        )
        scheduler = scheduler_of(settings, optimizer)
        prepared = self.accelerator.prepare(model, optimizer, loader, scheduler)
        self.model, self.optimizer, self.loader, self.scheduler = prepared
        run_of: Any = Alone
        if not plain:
            import spotd_hook

            run_of = spotd_hook.Run
        self.run = run_of(
            model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, book=self.book
        )

    def batches(self) -> Iterator[Tensor]:
        """Return the batches that are still to come, epoch after epoch.

        accelerate makes a loader's iterator, which draws random numbers, with its first batch.
        Where an epoch goes on, that comes before the first step.
        """
        epoch, begun = divmod(self.run.done * self.settings["accumulation"], len(self.loader))
        self.loader.set_epoch(epoch)
        going_on = self.accelerator.skip_first_batches(self.loader, begun)
        going_on.set_epoch(epoch)  # accelerate before 1.15 forgets it
        rest = iter(going_on)
        first = [next(rest)] if begun else []
        return itertools.chain(first, rest, self.later_batches(epoch + 1))

    def later_batches(self, epoch: int) -> Iterator[Tensor]:
        while True:
            self.loader.set_epoch(epoch)
            yield from self.loader
            epoch += 1

    def train(self) -> None:
        settings, run = self.settings, self.run
        batches = run.batches(self.batches())
        for step in run.steps(settings["steps"]):
            evaluates = step > 0 and step % settings["eval_steps"] == 0
            if evaluates:
                with run.evaluation(at_start=True):
                    loss = self.evaluate(step)
                self.book.see(step, loss, self.model)
                if settings["scheduler"] == "plateau":
                    self.scheduler.step(loss)
            if self.book.waited > settings["patience"]:
                break
            run.report(self.step(step, batches))

    def step(self, step: int, batches: Iterator[Tensor]) -> Tensor:
        total = torch.zeros(())
        self.model.train()
        for _ in range(self.settings["accumulation"]):
            rows = next(batches)
            reach("step", step)
            with self.accelerator.accumulate(self.model):
                loss = nn.functional.mse_loss(
                    self.model(rows), rows.square().sum(dim=1, keepdim=True)
                )
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 5.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            total += loss.detach()
        if self.settings["scheduler"] != "plateau":
            self.scheduler.step()
        self.book.losses.append(total.item())
        self.book.rates.append(self.optimizer.param_groups[0]["lr"])
        return total

    def evaluate(self, step: int) -> float:
        self.model.eval()
        total = 0.0
        for number in range(2):
            reach("evaluation", step)
            rows = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(1000 + number))
            with torch.no_grad():
                errors = self.model(rows) - rows.square().sum(dim=1, keepdim=True)
                total += float((errors.float() ** 2).mean())
        self.model.train()
        return total


def main() -> None:
    settings, plain = read_arguments()
    set_seed(settings["seed"])
    loop = Loop(settings, plain=plain)
    with loop.run:
        loop.train()
    book = loop.book
    write_result(
        {
            "losses": book.losses,
            "evaluations": book.evaluations,
            "rates": book.rates,
            "weights": digest(loop.accelerator.unwrap_model(loop.model).state_dict()),
            "optimizer": digest_optimizer(loop.optimizer.optimizer),
            "best": [digest(book.best), book.best_loss],
        }
    )


if __name__ == "__main__":
    main()
