"""Whether a checkpoint fits into the memory of one rank that saves all of it. Standard library
only, Python >= 3.10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .engine import FoundCheckpoint
from .saver_client import SaverError


def check_fits(found: FoundCheckpoint, pieces: Sequence[Mapping[str, Any]], size: int) -> None:
    """Raises SaverError unless it is laid out as `pieces`, in one stream of `size` bytes."""
    theirs = {tensor["name"]: tensor for tensor in found.tensors}
    same = list(found.sizes) == [size] and len(theirs) == len(pieces)
    for piece in pieces if same else []:
        one = theirs.get(piece["name"], {"dtype": "", "blocks": []})
        block = {"stream": 0, "at": list(piece["at"]), "shape": list(piece["block"])}
        block["offset"] = piece["offset"]
        same &= one["dtype"] == piece["dtype"] and list(one["blocks"]) == [block]
    if not same:
        text = f"the checkpoint of step {found.step} holds other tensors than this model has"
        raise SaverError("MismatchError", text + _differences(pieces, theirs))


def _differences(
    pieces: Sequence[Mapping[str, Any]], theirs: Mapping[str, Mapping[str, Any]]
) -> str:
    """The first of those that it has not, has otherwise, or has beside them."""
    ours = {piece["name"]: piece for piece in pieces}
    missing = [name for name in ours if name not in theirs]
    other = [
        f"{name} is {one['dtype']} {list(one['shape'])}"
        for name, one in theirs.items()
        if name in ours
        and (one["dtype"], list(one["shape"])) != (ours[name]["dtype"], list(ours[name]["shape"]))
    ]
    more = [name for name in theirs if name not in ours]
    found = {"missing": missing, "otherwise": other, "beside them": more}
    said = [f"{what}: {', '.join(names[:3])}" for what, names in found.items() if names]
    return f" ({'; '.join(said)})" if said else ", or has them in other places"


def pieces_of(found: FoundCheckpoint) -> list[dict[str, Any]]:
    """Its layout, as one rank's. Raises SaverError where it has several streams."""
    if len(found.sizes) != 1:
        text = f"the checkpoint of step {found.step} was saved in {len(found.sizes)} streams"
        raise SaverError("MismatchError", f"{text}, by another program: start a new job")
    return [
        {"name": tensor["name"], "dtype": tensor["dtype"], "shape": list(tensor["shape"])}
        | {"at": list(block["at"]), "block": list(block["shape"]), "offset": block["offset"]}
        for tensor in found.tensors
        for block in tensor["blocks"]
    ]
