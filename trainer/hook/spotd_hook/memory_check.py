"""Check whether a checkpoint fits a program: its configuration, and the layout of one rank that
saves everything.

Standard library only, Python >= 3.10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .engine import FoundCheckpoint
from .saver_client import SaverError

IMPORTED = "imported"  # marks weights alone, made by `spotctl ckpt import`


def check_fits(checkpoint: FoundCheckpoint, pieces: Sequence[Mapping[str, Any]], size: int) -> None:
    """Check that the checkpoint has the layout `pieces`, in one stream of `size` bytes.

    Raises SaverError.
    """
    saved = {tensor["name"]: tensor for tensor in checkpoint.tensors}
    same = list(checkpoint.sizes) == [size] and len(saved) == len(pieces)
    for piece in pieces if same else []:
        tensor = saved.get(piece["name"], {"dtype": "", "blocks": []})
        block = {"stream": 0, "at": list(piece["at"]), "shape": list(piece["block"])}
        block["offset"] = piece["offset"]
        same &= tensor["dtype"] == piece["dtype"] and list(tensor["blocks"]) == [block]
    if not same:
        text = f"the checkpoint of step {checkpoint.step} holds other tensors than this model has"
        raise SaverError("MismatchError", text + _differences(pieces, saved))


def check_config(state: Mapping[str, Any], step: int, config: Mapping[str, Any]) -> None:
    """Raise ValueError if a checkpoint was made with another configuration than `config`.

    The configuration of imported weights is unknown.
    """
    if IMPORTED in state:
        return
    made_with = state.get("config", {})
    for name in sorted(made_with.keys() | config.keys()):
        saved, current = made_with.get(name), config.get(name)
        if saved != current:
            raise ValueError(
                f"the checkpoint of step {step} was made with {name} = {saved!r}, this program has "
                f"{current!r}: put it back, or start a new job"
            )


def _differences(
    pieces: Sequence[Mapping[str, Any]], saved: Mapping[str, Mapping[str, Any]]
) -> str:
    """Name the first tensors that are missing, different or additional."""
    current = {piece["name"]: piece for piece in pieces}
    missing = [name for name in current if name not in saved]
    other = [
        f"{name} is {tensor['dtype']} {list(tensor['shape'])}"
        for name, tensor in saved.items()
        if name in current
        and (tensor["dtype"], list(tensor["shape"]))
        != (current[name]["dtype"], list(current[name]["shape"]))
    ]
    more = [name for name in saved if name not in current]
    by_kind = {"missing": missing, "different": other, "additional": more}
    differences = [f"{kind}: {', '.join(names[:3])}" for kind, names in by_kind.items() if names]
    return f" ({'; '.join(differences)})" if differences else ", or has them at other positions"


def pieces_of(checkpoint: FoundCheckpoint) -> list[dict[str, Any]]:
    """Return the checkpoint's layout for one rank. Raises SaverError if it has several streams."""
    if len(checkpoint.sizes) != 1:
        text = (
            f"the checkpoint of step {checkpoint.step} was saved in {len(checkpoint.sizes)} streams"
        )
        raise SaverError("MismatchError", f"{text}, by another program: start a new job")
    return [
        {"name": tensor["name"], "dtype": tensor["dtype"], "shape": list(tensor["shape"])}
        | {"at": list(block["at"]), "block": list(block["shape"]), "offset": block["offset"]}
        for tensor in checkpoint.tensors
        for block in tensor["blocks"]
    ]
