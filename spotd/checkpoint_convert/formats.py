"""The formats of `spotctl ckpt export`."""

from __future__ import annotations

from enum import Enum


class Format(str, Enum):
    """What comes out."""

    HF = "hf"
    DCP = "dcp"
    TORCH = "torch"
    SAFETENSORS = "safetensors"
