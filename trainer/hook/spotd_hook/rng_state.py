"""The random generators of a process: torch's, its GPU's, Python's, and NumPy's where the program
has it. Needs torch, Python >= 3.10."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def take() -> dict[str, Any]:
    """Their state, as of a `state_dict()`."""
    numpy = sys.modules.get("numpy")
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": None if numpy is None else numpy.random.get_state(),
    }


def give(state: dict[str, Any]) -> None:
    """Have them go on from there."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    random.setstate(state["python"])
    if state["numpy"] is not None:
        import numpy as np  # noqa: PLC0415 - the program that was saved had it

        np.random.set_state(state["numpy"])


def seed(base: int, step: int, rank: int) -> None:
    """Have all of them begin anew, as a function of these alone: where a step begins is then the
    same whatever happened before it."""
    digest = hashlib.sha256(f"{base} {step} {rank}".encode()).digest()
    number = int.from_bytes(digest[:4], "little")  # what NumPy takes
    torch.manual_seed(number)
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number)
