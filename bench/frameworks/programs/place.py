"""Places of a program where its machine may be taken away, and what every program here shares.

The environment says where the program waits (HELD_AT, HELD_UNTIL) and where it writes down the
places that it comes to (PLACES). Needs torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HELD = "held"  # the file that says that the program waits
RESULT = "result.json"  # written as the last thing
_seen = Counter[str]()


def reach(place: str, step: int) -> None:
    """Come to a place of a step: wait there if the machine is to be taken away at it."""
    _seen[f"{place} {step}"] += 1
    name = f"{place} {step} {_seen[f'{place} {step}']}"
    if "PLACES" in os.environ:
        with Path(os.environ["PLACES"]).open("a") as file:
            file.write(f"{name}\n")
    if os.environ.get("HELD_AT") == name:
        Path(HELD).touch()
        while not Path(os.environ["HELD_UNTIL"]).exists():
            time.sleep(0.002)


def reach_in(model: torch.nn.Module, step: Any) -> None:
    """Come to a place before each forward pass of the model; `step()` is the number of steps."""
    model.register_forward_pre_hook(
        lambda module, _: reach("step" if module.training else "evaluation", step())
    )


def read_arguments() -> tuple[dict[str, Any], bool]:
    """Return the settings of the program, and whether it runs without spotd."""
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", type=Path)
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    if not given.plain:
        sys.path.append(os.environ["HOOK"])  # as the agent does
    settings: dict[str, Any] = json.loads(given.settings.read_text())
    torch.set_num_threads(1)
    return settings, given.plain


def write_result(result: Mapping[str, Any]) -> None:
    """Write what the training left, as the last thing that the program does."""
    unfinished = Path(f"{RESULT}.new")
    unfinished.write_text(json.dumps(result, indent=1))
    unfinished.rename(RESULT)


def digest(state: Mapping[str, Any]) -> str:
    """Return a digest of the tensors of a state, bit for bit."""
    total = hashlib.sha256()
    for name, value in sorted(state.items()):
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().reshape(-1)
            total.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
            total.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return total.hexdigest()[:16]


def digest_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return a digest of an optimizer's state, by the number of its parameters."""
    state = optimizer.state_dict()["state"]
    return digest(
        {
            f"{number}.{name}": one
            for number, values in state.items()
            for name, one in values.items()
        }
    )


def random_tokens(count: int, seed: int, *, length: int = 12, vocabulary: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (count, length), generator=generator)
