"""Convert one safetensors file to torch's own formats.

Needs torch. The tensors are memory-mapped, so that they are loaded one after the other.
"""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spotd.base.errors import UserError
from spotd.base.extras import install_command

_SPECIAL_DTYPES = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "BOOL": "bool",
    "C64": "complex64",
}
_DTYPE_PREFIXES = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint"}


def require_torch(format_name: str) -> None:
    """Raise UserError if torch is not installed."""
    if find_spec("torch") is None:
        message = f"--format {format_name} needs torch, which is not installed where spotctl is"
        raise UserError(message, f"{install_command('torch')}, or take --format safetensors")


def write_torch(source: Path, target: Path) -> None:
    """Write one file for `torch.load(target, weights_only=True)`: a dict of tensors by name."""
    import torch

    torch.save(_map_tensors(source), target)


def write_dcp(source: Path, target: Path) -> None:
    """Write a folder for `torch.distributed.checkpoint.load`."""
    from torch.distributed.checkpoint import state_dict_saver

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # intended
        state_dict_saver.save(_map_tensors(source), checkpoint_id=target, no_dist=True)


def _map_tensors(source: Path) -> dict[str, Any]:
    """Return the memory-mapped tensors of a safetensors file, each with its own storage."""
    import torch

    with source.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    size = source.stat().st_size
    storage = torch.UntypedStorage.from_file(str(source), shared=False, nbytes=size)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + at for at in entry["data_offsets"])
        dtype, shape = getattr(torch, _torch_dtype(entry["dtype"])), tuple(entry["shape"])
        tensors[name] = torch.empty(shape if begin == end else 0, dtype=dtype)
        if begin < end:
            tensors[name].set_(storage[begin:end], 0, shape)  # type: ignore[call-overload]
    return tensors


def _torch_dtype(dtype: str) -> str:
    """Return torch's name of a safetensors dtype: F32 is float32."""
    letters = dtype.rstrip("0123456789")
    return _SPECIAL_DTYPES.get(dtype) or _DTYPE_PREFIXES[letters] + dtype[len(letters) :]
