"""What a save through `spotd_hook.Run` takes from a plain loop, beside torch.save and a bare copy:

    python bench/stall.py --megabytes 400 --rounds 7

One process, AdamW's state of that size, rounds interleaved; the saver uploads to a folder. Prints
JSON: seconds of each sample, medians, and the median stall over the median copy.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "trainer" / "hook"))


def measure(megabytes: int, rounds: int) -> dict[str, object]:
    """Samples and medians, in seconds."""
    import spotd_hook

    width = int((megabytes * 1e6 / 12 / 4) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()
    size = 3 * sum(one.numel() * one.element_size() for one in model.parameters())
    warm, source = torch.ones(size // 4), torch.ones(size // 4)
    samples: dict[str, list[float]] = {"copy": [], "run": [], "torch_save": []}
    with spotd_hook.Run(model=model, optimizer=optimizer, seed=1) as run:
        for step in run.steps(rounds + 1):
            began_s = time.perf_counter()
            warm.copy_(source)
            copied_s = time.perf_counter()
            run.save()
            saved_s = time.perf_counter()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            with Path("torch.pt").open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            ended_s = time.perf_counter()
            time.sleep(3 * (ended_s - began_s))  # the upload ends before the next one begins
            if step:  # the first has the memory made
                samples["copy"].append(copied_s - began_s)
                samples["run"].append(saved_s - copied_s)
                samples["torch_save"].append(ended_s - saved_s)
    medians = {name: round(median(taken), 4) for name, taken in samples.items()}
    ratio = round(medians["run"] / medians["copy"], 2)
    return {"bytes": size, "samples": samples, "medians": medians, "stall_vs_copy": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stall-") as folder:
        os.chdir(folder)
        os.environ.update(SPOTD_EVERY_STEPS="0", SPOTD_EVERY_S="0")
        print(json.dumps(measure(args.megabytes, args.rounds)))
        os.chdir("/")


if __name__ == "__main__":
    main()
