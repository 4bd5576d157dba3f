"""A training program that waits PAUSE_S for each batch. Not a test itself.

    starved.py loop|plain|transformers|lightning ARGUMENTS...

`loop` has its batches measured by Run, `plain` does not; the others are the examples of that name.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PAUSE_S = float(os.environ["PAUSE_S"])
EXAMPLES = Path(__file__).parents[3] / "examples"


def loop(steps: int, *, measured: bool) -> None:
    import spotd_hook
    import torch

    def slow() -> Iterator[torch.Tensor]:
        while True:
            time.sleep(PAUSE_S)
            yield torch.ones(4, 2)

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with spotd_hook.Run(model=model, optimizer=optimizer) as run:
        batches: Iterable[torch.Tensor] = run.batches(slow()) if measured else slow()
        for _, batch in zip(run.steps(steps), batches):  # noqa: B905 - without an end
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss)


def example(name: str) -> None:
    namespace = runpy.run_path(str(EXAMPLES / name / "train.py"), run_name="example")
    if name == "lightning":
        rows = namespace["Rows"]
        batches = rows.__iter__

        def slowly(self: Any) -> Iterator[Any]:
            for batch in batches(self):
                time.sleep(PAUSE_S)
                yield batch

        rows.__iter__ = slowly
    else:
        rows = namespace["Sums"]
        get = rows.__getitem__

        def each(self: Any, at: int) -> Any:
            time.sleep(PAUSE_S / 8)  # rows of a batch
            return get(self, at)

        rows.__getitem__ = each
    namespace["main"]()


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    if kind in ("loop", "plain"):
        loop(int(sys.argv[1]), measured=kind == "loop")
    else:
        example(kind)
