"""Export a checkpoint as safetensors, a Hugging Face folder, a torch file or a DCP folder.

The daemon sends the bytes, and their digests are verified. The export is written to `DIR.part`,
which is renamed to DIR at the end, so that DIR is never incomplete.
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
from spotd.api_client.download import damage_error, fetch_checkpoint
from spotd.base.errors import ExitCode, UserError
from spotd.checkpoint_convert.formats import Format
from spotd.checkpoint_convert.safetensors_writer import (
    SafetensorsWriter,
    TensorFile,
    select_tensors,
    split_files,
)
from spotd.checkpoint_convert.torch_files import require_torch, write_dcp, write_torch
from spotd.wire import Manifest, parse_saved_folder

HF_BYTES = 5_000_000_000  # maximum size of a shard, the default of transformers
MODEL_PREFIX = "model."  # prefix of weights in a checkpoint that holds other tensors as well
NOTE_FILE = "spotd.json"  # in each export: the checkpoint's origin and its JSON state
_ALL_TENSORS = "tensors.safetensors"


def export_into(
    *,
    client: Client,
    listing: dict[str, Any],
    which: str,
    export_format: Format,
    folder: Path,
    prefix: str | None,
    on_progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Export checkpoint `which` (a step, a pin, or "" for the newest) to `folder`.

    `listing` is the daemon's list of the job's checkpoints. `folder` must not exist, or be empty.
    Only tensors whose names begin with `prefix` are exported; None leaves the choice to the
    format. `on_progress(done, total)` is called with bytes. Raises UserError.
    """
    if export_format in (Format.DCP, Format.TORCH):
        require_torch(export_format.value)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already", "name a new folder with --into")
    item = (
        next((item for item in listing["items"] if which in item["pins"]), None) if which else None
    )
    partial_folder = folder.absolute().with_name(f"{folder.absolute().name}.part")
    try:
        shutil.rmtree(partial_folder, ignore_errors=True)
        partial_folder.mkdir(parents=True)
        with SafetensorsWriter(
            partial_folder, partial(_plan_files, export_format, prefix), on_progress
        ) as writer:
            step = str(item["step"]) if item else which
            fetch_checkpoint(writer, client, listing["id"], step)
            writer.sync()
        data = _finish(partial_folder, export_format, listing, writer)
        partial_folder.replace(folder.absolute())
    except DamagedError as error:
        raise damage_error(error) from None
    except OSError as error:
        message = f"{folder} cannot be written: {error}"
        raise UserError(message, "name another folder with --into") from None
    finally:
        shutil.rmtree(partial_folder, ignore_errors=True)
    return {**data, "out": str(folder.absolute())}


def _plan_files(export_format: Format, prefix: str | None, manifest: Manifest) -> list[TensorFile]:
    if not manifest.tensors:
        saved = parse_saved_folder(manifest)
        if saved is not None and saved.files:
            message = f"step {manifest.step} consists of the program's own files ({saved.newest})"
            raise UserError(message, "spotctl ckpt pull JOB --into DIR gives them back")
        message = f"step {manifest.step} has no tensors: its job saved nothing"
        raise UserError(message, "spotctl ckpt ls names others", ExitCode.NOT_FOUND)
    if prefix is None:
        has_model = any(tensor.name.startswith(MODEL_PREFIX) for tensor in manifest.tensors)
        prefix = MODEL_PREFIX if export_format is Format.HF and has_model else ""
    tensors = select_tensors(manifest, prefix)
    if export_format is not Format.HF:
        return [TensorFile(_ALL_TENSORS, tuple(tensors))]
    groups = split_files(tensors, HF_BYTES)
    return [
        TensorFile(f"model-{number:05d}-of-{len(groups):05d}.safetensors", tuple(group))
        for number, group in enumerate(groups, 1)
    ]


def _finish(
    folder: Path, export_format: Format, listing: dict[str, Any], writer: SafetensorsWriter
) -> dict[str, Any]:
    """Complete the export after all tensors are written, and return its summary."""
    manifest, ref = writer.manifest, writer.ref
    assert manifest is not None  # noqa: S101 - set by `opened`
    assert ref is not None  # noqa: S101 - set by `opened`
    source = folder / _ALL_TENSORS
    match export_format:
        case Format.HF:
            _write_json(folder / "model.safetensors.index.json", _index(writer.files))
        case Format.TORCH:
            write_torch(source, folder / "checkpoint.pt")
        case Format.DCP:
            write_dcp(source, folder)
        case Format.SAFETENSORS:
            source.rename(folder / "checkpoint.safetensors")
    source.unlink(missing_ok=True)
    count = sum(len(file.tensors) for file in writer.files)
    size = sum(file.size for file in writer.files)
    note = {
        "job": listing["job"],
        "job_id": listing["id"],
        **asdict(ref),
        "format": export_format.value,
    }
    names = {tensor.name for file in writer.files for tensor in file.tensors}
    note["complete"] = names == {tensor.name for tensor in manifest.tensors}
    details = {"created_at_us": manifest.created_at_us, "state": dict(manifest.state)}
    _write_json(folder / NOTE_FILE, {**note, "tensors": count, "bytes": size, **details})
    return {
        "apiVersion": "spotd/v1",
        "kind": "CheckpointExported",
        "step": ref.step,
        "generation": ref.generation,
        "format": export_format.value,
        "tensors": count,
        "bytes": size,
        "files": sorted(path.name for path in folder.iterdir()),
    }


def _index(files: Sequence[TensorFile]) -> dict[str, Any]:
    """Return the index that transformers uses to find the file of each tensor."""
    weight_map = {tensor.name: file.name for file in files for tensor in file.tensors}
    total_bytes = sum(file.size for file in files)
    return {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
