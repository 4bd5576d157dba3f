"""A loop with accelerate, whose prepared objects are given to `spotd_hook.Run`. Not a test itself.

    accelerated.py [--leave-at STEP] [--forget NAME] [--shared]

In step `--leave-at` the program asks itself to stop, as a machine that ends does. With `--forget`
the object of that name is not given to Run, or, for `data`, the epoch that was interrupted begins
again. With `--shared` the loader draws from the generator of the whole program. Writes what is left
to result.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import Tensor, nn

STEPS, BATCHES, ACCUMULATED = 13, 10, 2  # five steps are an epoch


class Seen:
    """What the loop registers with accelerate: the rows that it trained with."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]


def batches(accelerator: Any, loader: Any, done: int) -> Iterator[Tensor]:
    """Yield the batches of all epochs after the first `done` ones."""
    epoch, skipped = divmod(done, BATCHES)
    while True:
        loader.set_epoch(epoch)
        yield from accelerator.skip_first_batches(loader, skipped)
        epoch, skipped = epoch + 1, 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--leave-at", type=int, default=-1)
    parser.add_argument("--forget", default="")
    parser.add_argument("--shared", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    import spotd_hook

    from tests.trainer.hook.kinds import digest

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=ACCUMULATED,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5)
    rows = torch.arange(40.0).reshape(-1, 1) + torch.tensor([0.0, 0.1, 0.2, 0.3])
    generator = None if arguments.shared else torch.Generator().manual_seed(3)
    loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True, generator=generator)
    model, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    seen = Seen()
    accelerator.register_for_checkpointing(seen)
    given = {"model": model, "optimizer": optimizer, "scheduler": schedule, "seen": seen}
    given.pop(arguments.forget, None)
    with spotd_hook.Run(**given) as run:
        done = run.done * ACCUMULATED
        data = batches(accelerator, loader, done - done % BATCHES if arguments.forget else done)
        for step in run.steps(STEPS):
            if step == arguments.leave_at:
                os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(ACCUMULATED):
                batch = next(data)
                seen.rows.append(batch[:, 0].long().tolist())
                with accelerator.accumulate(model):
                    loss = model(batch / 40).square().mean()
                    accelerator.backward(loss)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
    result = {
        "model": digest(dict(accelerator.unwrap_model(model).state_dict())),
        "optimizer": digest(optimizer.state_dict()["state"]),
        "scheduler": schedule.get_last_lr(),
        "seen": len(seen.rows),
        "data": seen.rows[-2 * BATCHES :],
    }
    Path("result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
