"""How fast the machine copies from a device into host memory, whoever does it."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor

from trainer.hook.spotd_hook.shared_memory import SharedMemory, make_memory
from trainer.hook.spotd_hook.tensor_copy import CHUNK, pin

PINNED, REGISTERED, PAGEABLE = "pinned by torch", "the saver's memory, registered", "pageable"
WARM = "warm memory of the host"


def ceilings(device: torch.device, size: int, rounds: int) -> dict[str, list[float]]:
    """GB/s of each round, by kind of memory; without a GPU of a copy within the host. At most 4 GB
    are copied. Raises RuntimeError where memory cannot be registered."""
    size = min(size, 4_000_000_000) // 4 * 4
    source = torch.ones(size // 4, device=device)
    fd = make_memory(size, 2)
    arena = SharedMemory(fd, size, 2)
    os.close(fd)
    arena.fault_in()
    targets = {WARM: _over(arena.slot(0))}
    unpin = _nothing
    if device.type == "cuda":
        alone = make_memory(size, 1)
        registered = SharedMemory(alone, size, 1)
        os.close(alone)
        registered.fault_in()
        unpin = pin(registered.slot_area, _refuse)
        targets = {
            PINNED: torch.empty(size // 4, pin_memory=True),
            REGISTERED: _over(registered.slot(0)),
            PAGEABLE: _over(arena.slot(0)),
        }
    found: dict[str, list[float]] = {name: [] for name in targets}
    for number in range(-1, rounds):  # the first is to warm up
        for name, target in targets.items():
            took_s = _copy_s(source, target, device)
            if number >= 0:
                found[name].append(round(size / 1e9 / took_s, 4))
    unpin()
    return found


def _copy_s(source: Tensor, target: Tensor, device: torch.device) -> float:
    """One behind the other, and all waited for at the end."""
    step = CHUNK // 4
    _wait(device)
    began_s = time.perf_counter()
    for at in range(0, len(source), step):
        target[at : at + step].copy_(source[at : at + step], non_blocking=True)
    _wait(device)
    return time.perf_counter() - began_s


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _over(memory: memoryview) -> Any:
    return torch.frombuffer(memory, dtype=torch.float32)


def _refuse(text: str) -> None:
    raise RuntimeError(text)


def _nothing() -> None:
    """Nothing was pinned."""
