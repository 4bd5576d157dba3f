"""The state of a process's random generators: torch, its GPU, Python and NumPy if imported.

Needs torch, Python >= 3.10.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """Return the state of all generators, in the format of a `state_dict()`."""
    numpy = sys.modules.get("numpy")
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": None if numpy is None else numpy.random.get_state(),
    }


def are_equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return whether nothing was drawn between two captures."""
    for name in ("torch", "cuda"):
        one, other = first[name], second[name]
        if (one is None) != (other is None) or (one is not None and not torch.equal(one, other)):
            return False
    numpy_states = [_plain(state["numpy"]) for state in (first, second)]
    return bool(first["python"] == second["python"] and numpy_states[0] == numpy_states[1])


def _plain(numpy_state: Any) -> Any:
    """Return a state of NumPy's generator that can be compared."""
    if numpy_state is None:
        return None
    return [part.tobytes() if hasattr(part, "tobytes") else part for part in numpy_state]


def restore(state: dict[str, Any]) -> None:
    """Set all generators to a captured state."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    random.setstate(state["python"])
    if state["numpy"] is not None:
        import numpy as np  # noqa: PLC0415 - the program that was saved had it

        np.random.set_state(state["numpy"])


def seed(base: int, step: int, rank: int) -> None:
    """Seed all generators from these values alone, independently of earlier steps."""
    digest = hashlib.sha256(f"{base} {step} {rank}".encode()).digest()
    number = int.from_bytes(digest[:4], "little")  # the range of NumPy's seeds
    torch.manual_seed(number)
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number)
