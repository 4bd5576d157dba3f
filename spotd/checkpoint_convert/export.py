"""A checkpoint as other programs read it: safetensors, Hugging Face's folder, torch's own two.

The daemon sends the bytes, each is verified, and what is not whole never has its name: all is made
in a folder beside DIR, which is DIR at the end.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from spotd.act.checkpoints import DamagedError
from spotd.api_client.client import Client
from spotd.api_client.download import fetch_into, refused
from spotd.base.errors import ExitCode, UserError
from spotd.checkpoint_convert.formats import Format
from spotd.checkpoint_convert.safetensors_writer import SafetensorsWriter, TensorFile, chosen, cut
from spotd.checkpoint_convert.torch_files import require_torch, write_dcp, write_torch
from spotd.wire import Manifest

HF_BYTES = 5_000_000_000  # of a shard, as transformers cuts them by default
WEIGHTS = "model."  # what the names of weights begin with, where other tensors are beside them
NOTE = "spotd.json"  # in each export: which checkpoint it is, and its JSON part
_ALL = "tensors.safetensors"


def export_into(
    client: Client,
    listed: dict[str, Any],
    which: str,
    kind: Format,
    folder: Path,
    only: str | None,
    told: Callable[[int, int], None],
) -> dict[str, Any]:
    """Have it in `folder`, which is not there yet, or empty. `only` is what names begin with, None
    for the format's own choice. Raises UserError."""
    if kind in (Format.DCP, Format.TORCH):
        require_torch(kind.value)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already", "name a new folder with --out")
    item = next((one for one in listed["items"] if which in one["pins"]), None) if which else None
    part = folder.absolute().with_name(f"{folder.absolute().name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        with SafetensorsWriter(part, partial(_plan, kind, only), told) as spread:
            step = str(item["step"]) if item else which
            fetch_into(spread, client, listed["id"], step)
            spread.sync()
        data = _finish(part, kind, listed, spread)
        part.replace(folder.absolute())
    except DamagedError as error:
        raise refused(error) from None
    except OSError as error:
        text = f"{folder} cannot be written: {error}"
        raise UserError(text, "name another folder with --out") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return {**data, "out": str(folder.absolute())}


def _plan(kind: Format, only: str | None, manifest: Manifest) -> list[TensorFile]:
    if not manifest.tensors:
        text = f"step {manifest.step} has no tensors: it ends a job that saved nothing with spotd"
        raise UserError(text, "spotctl ckpt ls names others", ExitCode.NOT_FOUND)
    if only is None:
        split = any(tensor.name.startswith(WEIGHTS) for tensor in manifest.tensors)
        only = WEIGHTS if kind is Format.HF and split else ""
    tensors = chosen(manifest, only)
    if kind is not Format.HF:
        return [TensorFile(_ALL, tuple(tensors))]
    groups = cut(tensors, HF_BYTES)
    return [
        TensorFile(f"model-{number:05d}-of-{len(groups):05d}.safetensors", tuple(group))
        for number, group in enumerate(groups, 1)
    ]


def _finish(
    part: Path, kind: Format, listed: dict[str, Any], spread: SafetensorsWriter
) -> dict[str, Any]:
    """All tensors are there: what else the format has."""
    manifest, ref = spread.manifest, spread.ref
    assert manifest is not None  # noqa: S101 - all came
    assert ref is not None  # noqa: S101 - with it
    source = part / _ALL
    match kind:
        case Format.HF:
            _write_json(part / "model.safetensors.index.json", _index(spread.files))
        case Format.TORCH:
            write_torch(source, part / "checkpoint.pt")
        case Format.DCP:
            write_dcp(source, part)
        case Format.SAFETENSORS:
            source.rename(part / "checkpoint.safetensors")
    source.unlink(missing_ok=True)
    count = sum(len(file.tensors) for file in spread.files)
    size = sum(file.size for file in spread.files)
    note = {"job": listed["job"], "job_id": listed["id"], **asdict(ref), "format": kind.value}
    names = {one.name for file in spread.files for one in file.tensors}
    note["complete"] = names == {tensor.name for tensor in manifest.tensors}
    more = {"created_at_us": manifest.created_at_us, "state": dict(manifest.state)}
    _write_json(part / NOTE, {**note, "tensors": count, "bytes": size, **more})
    return {
        "apiVersion": "spotd/v1",
        "kind": "CheckpointExported",
        "step": ref.step,
        "generation": ref.generation,
        "format": kind.value,
        "tensors": count,
        "bytes": size,
        "files": sorted(path.name for path in part.iterdir()),
    }


def _index(files: Sequence[TensorFile]) -> dict[str, Any]:
    """Which tensor is in which file, as transformers looks it up."""
    places = {one.name: file.name for file in files for one in file.tensors}
    total = sum(file.size for file in files)
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
