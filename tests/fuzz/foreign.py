"""Checkpoints of other programs, whose files may be anything."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from spotd.base.errors import UserError
from spotd.checkpoint_convert.dcp_reader import INDEX
from spotd.checkpoint_convert.foreign_checkpoint import read_source
from spotd.cli.import_job import tensor_layouts
from tests.fixtures.memory import MEMORY

SPLIT = b"\n=====\n"


def read_safetensors(data: bytes) -> None:
    """One file: blocks that lie inside of it, or a refusal."""
    _read({"model.safetensors": data})


def read_folder(data: bytes) -> None:
    """A folder of torch.distributed.checkpoint: its index, SPLIT, its one file."""
    index, _, file = data.partition(SPLIT)
    _read({INDEX: index, "__0_0.distcp": file})


def _read(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        for path, data in files.items():
            (Path(name) / path).write_bytes(data)
        with contextlib.suppress(UserError):
            source = read_source(Path(name), "")
            tensor_layouts(source.tensors)
            for one in source.tensors:
                assert one.offset + one.size <= one.file.stat().st_size
