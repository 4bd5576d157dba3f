"""The size of a checkpoint: weights alone, or all that a resume needs; and what guides say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from spotd.sizing.memory import adapter_bytes, adapter_parameters, full_bytes
from spotd.sizing.task import Task

GB = 1e9
_LIKE = 1.3  # a guide's figure is of this model where the sizes differ by no more than this factor


@dataclass(frozen=True)
class PublishedSize:
    """A guide's figure: a kind of training, its size in GB, and the time of a save."""

    kind: str
    gb: float
    save_s: tuple[float, float]

    @property
    def gb_per_s(self) -> tuple[float, float]:
        """Return the write rate that it implies, slowest and fastest."""
        quick_s, slow_s = self.save_s
        return self.gb / slow_s, self.gb / quick_s


# All are of weights alone: 2 bytes a parameter in fp16, half of one in NF4. What resumes is larger.
GUIDES = (
    PublishedSize("7B QLoRA", 3, (5, 10)),
    PublishedSize("70B QLoRA", 35, (30, 60)),
    PublishedSize("70B fp16", 140, (120, 240)),
    PublishedSize("405B", 810, (600, 1200)),
)


def bytes_a_parameter(task: Task) -> float:
    """Return the bytes of each trained parameter in a checkpoint.

    Its weight and the optimizer's state, without a gradient (docs/rightsizing.md has the widths).
    """
    run = task.run
    if run.frozen:
        whole = adapter_bytes(run)
        return whole - whole / 4  # a quarter of it is the gradient
    weight, _, optimizer = full_bytes(run)
    return weight + optimizer


def checkpoint_bytes(task: Task) -> int:
    """Return the bytes that a resume needs; for a frozen base only the adapters."""
    trained = task.shape.parameters
    if task.run.frozen:
        trained = adapter_parameters(task.shape, task.run)
    return round(bytes_a_parameter(task) * trained)


def guide_of(task: Task) -> PublishedSize | None:
    """The figure that guides have for such a model, if they have one."""
    gb = task.shape.parameters * (0.5 if task.run.method == "qlora" else 2.0) / GB
    near = min(GUIDES, key=lambda guide: abs(math.log(guide.gb / gb)))
    return near if abs(math.log(near.gb / gb)) <= math.log(_LIKE) else None


def saves_data(task: Task) -> dict[str, Any]:
    """Return each size as JSON in GB (1e9 bytes), with what is counted."""
    parameters, guide = task.shape.parameters, guide_of(task)
    counted = "adapters and their two moments" if task.run.frozen else "weights and optimizer"
    data: dict[str, Any] = {
        "resumable_gb": round(checkpoint_bytes(task) / GB, 1),
        "counted": counted,
        "bytes_a_parameter": bytes_a_parameter(task),
        "weights_2_bytes_gb": round(2 * parameters / GB, 1),
        "weights_4_bytes_gb": round(4 * parameters / GB, 1),
        "guide": None,
    }
    if guide is not None:
        speeds = [round(speed, 3) for speed in guide.gb_per_s]
        figures = {"kind": guide.kind, "gb": guide.gb, "save_s": list(guide.save_s)}
        data["guide"] = {**figures, "gb_per_s": speeds}
    return data


def saves_lines(data: dict[str, Any]) -> list[str]:
    """Return the same as text."""
    first = (
        f"a checkpoint: {data['resumable_gb']:,.1f} GB to resume from ({data['counted']}, "
        f"{data['bytes_a_parameter']:g} bytes a parameter); weights alone, from which nothing "
        f"resumes: {data['weights_2_bytes_gb']:,.1f} GB in 2 bytes, "
        f"{data['weights_4_bytes_gb']:,.1f} in 4"
    )
    lines = [first]
    guide = data["guide"]
    if guide is not None:
        (quick_s, slow_s), (slow, fast) = guide["save_s"], guide["gb_per_s"]
        size = data["resumable_gb"]
        lines.append(
            f"guides have {guide['gb']:g} GB in {quick_s:g} to {slow_s:g} s for {guide['kind']}: "
            f"weights alone, written at {slow:.2f} to {fast:.2f} GB/s; at that, what resumes takes "
            f"{size / fast:,.0f} to {size / slow:,.0f} s"
        )
    return lines
