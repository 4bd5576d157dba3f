"""Write the tensors of a checkpoint to safetensors files as a stream.

Bytes are written to their final position as they arrive, so that memory holds only one part. The
format is eight bytes of header length, a JSON header, and the tensors without gaps:
https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from spotd.act.checkpoints import DamagedError
from spotd.base.errors import UserError
from spotd.wire import Block, HeadRef, Manifest, Shard, TensorLayout

# torch's dtype name: (bytes per element, name in safetensors)
DTYPES = {
    "float64": (8, "F64"),
    "float32": (4, "F32"),
    "float16": (2, "F16"),
    "bfloat16": (2, "BF16"),
    "float8_e4m3fn": (1, "F8_E4M3"),
    "float8_e5m2": (1, "F8_E5M2"),
    "int64": (8, "I64"),
    "int32": (4, "I32"),
    "int16": (2, "I16"),
    "int8": (1, "I8"),
    "uint64": (8, "U64"),
    "uint32": (4, "U32"),
    "uint16": (2, "U16"),
    "uint8": (1, "U8"),
    "bool": (1, "BOOL"),
    "complex64": (8, "C64"),
}
ALIGN = 8  # the header is padded to a multiple of this many bytes


@dataclass(frozen=True)
class NamedTensor:
    """A tensor and its name in the file."""

    name: str
    tensor: TensorLayout

    @property
    def size(self) -> int:
        """Size in bytes."""
        return prod(self.tensor.shape) * DTYPES[self.tensor.dtype][0]


@dataclass(frozen=True)
class TensorFile:
    """A file's name, and its tensors in order."""

    name: str
    tensors: tuple[NamedTensor, ...]

    @property
    def size(self) -> int:
        """Size of all its tensors in bytes, without the header."""
        return sum(tensor.size for tensor in self.tensors)

    def header(self, metadata: dict[str, str]) -> bytes:
        """Return the bytes that precede the tensors: the header with its length."""
        table: dict[str, object] = {"__metadata__": metadata}
        offset = 0
        for tensor in self.tensors:
            entry = {"dtype": DTYPES[tensor.tensor.dtype][1], "shape": list(tensor.tensor.shape)}
            table[tensor.name] = {**entry, "data_offsets": [offset, offset + tensor.size]}
            offset += tensor.size
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGN)
        return len(text).to_bytes(8, "little") + text


def select_tensors(manifest: Manifest, prefix: str) -> list[NamedTensor]:
    """Return the tensors whose names begin with `prefix`, named without it.

    They are sorted by element size, largest first, so that every tensor is aligned to its element
    size. Raises UserError if there is none, and the errors of `check_layout`.
    """
    selected = [
        NamedTensor(tensor.name.removeprefix(prefix), tensor)
        for tensor in manifest.tensors
        if tensor.name.startswith(prefix)
    ]
    if not selected:
        condition = f" begins with {prefix!r}" if prefix else ""
        names = ", ".join(tensor.name for tensor in manifest.tensors[:3])
        message = f"no tensor of step {manifest.step}{condition}"
        raise UserError(message, f"give --only another prefix; there are {names} and others")
    for named in selected:
        check_layout(manifest, named)
    return sorted(selected, key=lambda named: -DTYPES[named.tensor.dtype][0])


def check_layout(manifest: Manifest, named: NamedTensor) -> None:
    """Check that a tensor can be written, and that its blocks cover it exactly.

    Raises UserError for a dtype that safetensors does not have, and DamagedError for blocks outside
    of their stream or tensor, or that do not cover the tensor.
    """
    tensor = named.tensor
    if tensor.dtype not in DTYPES:
        message = f"tensor {tensor.name} is of {tensor.dtype}, which safetensors does not have"
        raise UserError(message, "spotctl ckpt pull, and docs/read_checkpoint.py")
    item_bytes, total = DTYPES[tensor.dtype][0], 0
    for block in tensor.blocks:
        size = prod(block.shape)
        pairs = zip(block.at, block.shape, tensor.shape, strict=False)
        valid = len(block.at) == len(block.shape) == len(tensor.shape)
        valid = valid and all(at + count <= limit for at, count, limit in pairs)
        valid = valid and block.stream < len(manifest.streams)
        if not valid or block.offset + size * item_bytes > manifest.streams[block.stream].size:
            raise DamagedError(f"a block of tensor {tensor.name} lies outside of it")
        total += size
    distinct = len({block.at for block in tensor.blocks}) == len(tensor.blocks)
    if total != prod(tensor.shape) or not distinct:
        raise DamagedError(f"the blocks of tensor {tensor.name} are not all of it")


def split_files(tensors: Iterable[NamedTensor], max_bytes: int) -> list[list[NamedTensor]]:
    """Group tensors by file, at most `max_bytes` each but at least one tensor."""
    groups: list[list[NamedTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if groups[-1] and size + tensor.size > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.size
    return groups


def byte_runs(
    shape: Sequence[int], block: Block, item_bytes: int, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield (offset in the tensor, count) for each contiguous run of a block's bytes.

    `begin` and `end` are byte positions in the block. Both are stored in row-major order.
    """
    outer = len(shape)  # number of dimensions that are iterated; the others are contiguous
    while outer and block.shape[outer - 1] == shape[outer - 1]:
        outer -= 1
    outer = max(outer - 1, 0)
    strides = [item_bytes * prod(shape[dim + 1 :]) for dim in range(len(shape))]
    base_offset = sum(at * stride for at, stride in zip(block.at, strides, strict=True))
    run_bytes = item_bytes * prod(block.shape[outer:])
    while begin < end:
        run_index, run_offset = divmod(begin, run_bytes)
        position = base_offset + run_offset
        for dim in reversed(range(outer)):
            run_index, index = divmod(run_index, block.shape[dim])
            position += index * strides[dim]
        count = min(run_bytes - run_offset, end - begin)
        yield position, count
        begin += count


@dataclass(frozen=True)
class _BlockTarget:
    """A block's byte range in its stream, and the file and offset of its tensor."""

    start: int
    end: int
    file: int
    at: int
    tensor: TensorLayout
    block: Block


class SafetensorsWriter:
    """A download sink (spotd.api_client.download) that writes safetensors files to `folder`.

    `plan(manifest)` returns the files to write. `on_progress(done, total)` is called with bytes.
    """

    def __init__(
        self,
        folder: Path,
        plan: Callable[[Manifest], Sequence[TensorFile]],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self._folder, self._plan, self._on_progress = folder, plan, on_progress
        self.ref: HeadRef | None = None
        self.manifest: Manifest | None = None
        self.files: Sequence[TensorFile] = ()
        self._open: list[int] = []
        self._targets: dict[int, list[_BlockTarget]] = {}  # by stream, last first
        self._shard_starts: list[tuple[int, int]] = []  # (stream, offset) of each shard
        self._active_targets: list[_BlockTarget] = []
        self._stream = -1
        self._at = self._done = 0

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._open:
            os.close(number)
        self._open = []

    def begin_checkpoint(self, ref: HeadRef, manifest: Manifest, _data: bytes) -> None:
        self.ref, self.manifest, self.files = ref, manifest, self._plan(manifest)
        for number, stream in enumerate(manifest.streams):
            at = 0
            for shard in stream.shards:
                self._shard_starts.append((number, at))
                at += shard.size
        metadata = {"format": "pt", "step": str(manifest.step)}
        for number, file in enumerate(self.files):
            header = file.header(metadata)
            descriptor = os.open(
                self._folder / file.name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644
            )
            self._open.append(descriptor)
            os.pwrite(descriptor, header, 0)
            os.truncate(descriptor, len(header) + file.size)
            self._add_targets(number, file, len(header))
        for targets in self._targets.values():
            targets.sort(key=lambda target: -target.start)

    def _add_targets(self, number: int, file: TensorFile, at: int) -> None:
        for named in file.tensors:
            item_bytes = DTYPES[named.tensor.dtype][0]
            for block in named.tensor.blocks:
                start, size = block.offset, prod(block.shape) * item_bytes
                target = _BlockTarget(start, start + size, number, at, named.tensor, block)
                if size:
                    self._targets.setdefault(block.stream, []).append(target)
            at += named.size

    def begin_shard(self, number: int, _shard: Shard) -> None:
        stream, self._at = self._shard_starts[number]
        if stream != self._stream:
            self._stream, self._active_targets = stream, []

    def write(self, part: bytes) -> None:
        begin, end = self._at, self._at + len(part)
        pending = self._targets.get(self._stream, [])
        while pending and pending[-1].start < end:
            self._active_targets.append(pending.pop())
        self._active_targets = [target for target in self._active_targets if target.end > begin]
        view = memoryview(part)
        for target in self._active_targets:
            self._write(target, view, begin)
        self._at = end
        self._done += len(part)
        assert self.manifest is not None  # noqa: S101 - set by `opened`
        self._on_progress(self._done, self.manifest.size)

    def _write(self, target: _BlockTarget, view: memoryview, begin: int) -> None:
        """Write the part of a block that is in `view`, which starts at `begin` of the stream."""
        first, last = max(target.start, begin), min(target.end, begin + len(view))
        item_bytes = DTYPES[target.tensor.dtype][0]
        block_range = (first - target.start, last - target.start)
        for position, count in byte_runs(
            target.tensor.shape, target.block, item_bytes, *block_range
        ):
            _write_at(self._open[target.file], view[first - begin :][:count], target.at + position)
            first += count

    def end_shard(self) -> None:
        """Do nothing: files are synced once, after the last shard, by `sync`."""

    def sync(self) -> None:
        """Flush all files to disk; called when every shard has arrived."""
        for number in self._open:
            os.fsync(number)


def _write_at(file: int, view: memoryview, at: int) -> None:
    while view:
        count = os.pwrite(file, view, at)
        view, at = view[count:], at + count
