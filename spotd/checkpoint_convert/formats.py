"""The formats of `spotctl ckpt export`."""

from __future__ import annotations

from enum import Enum


class Format(str, Enum):
    """An export format, by its name on the command line."""

    HF = "hf"
    DCP = "dcp"
    TORCH = "torch"
    SAFETENSORS = "safetensors"
