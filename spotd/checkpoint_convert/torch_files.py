"""Checkpoints as torch itself reads them, made of one safetensors file. torch is needed for that;
the tensors stay on the disk and come into memory one after the other."""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spotd.base.errors import UserError

_TORCH = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "BOOL": "bool", "C64": "complex64"}
_KINDS = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint"}


def require_torch(kind: str) -> None:
    """Raises UserError where it is not installed."""
    if find_spec("torch") is None:
        text = f"--format {kind} needs torch, which is not installed where spotctl is"
        raise UserError(text, "pip install 'spotd[torch]', or take --format safetensors")


def write_torch(source: Path, target: Path) -> None:
    """One file for `torch.load(target, weights_only=True)`: tensors by name."""
    import torch

    torch.save(_mapped(source), target)


def write_dcp(source: Path, target: Path) -> None:
    """A folder for `torch.distributed.checkpoint.load`."""
    from torch.distributed.checkpoint import state_dict_saver

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it is meant
        state_dict_saver.save(_mapped(source), checkpoint_id=target, no_dist=True)


def _mapped(source: Path) -> dict[str, Any]:
    """The tensors of a safetensors file, not read yet, each with a storage of its own."""
    import torch

    with source.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    size = source.stat().st_size
    whole = torch.UntypedStorage.from_file(str(source), shared=False, nbytes=size)
    found = {}
    for name, entry in header.items():
        begin, end = (8 + length + at for at in entry["data_offsets"])
        dtype, shape = getattr(torch, _name(entry["dtype"])), tuple(entry["shape"])
        found[name] = torch.empty(shape if begin == end else 0, dtype=dtype)
        if begin < end:
            found[name].set_(whole[begin:end], 0, shape)  # type: ignore[call-overload]
    return found


def _name(dtype: str) -> str:
    """As torch says F32 and its like."""
    letters = dtype.rstrip("0123456789")
    return _TORCH.get(dtype) or _KINDS[letters] + dtype[len(letters) :]
