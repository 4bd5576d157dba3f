"""Tensors of a checkpoint into safetensors files, in the order in which their bytes come: written
to where they belong at once, so that memory holds no more than what came last.

The format is eight bytes of length, a header in JSON, the tensors without gaps:
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

# dtype as torch names it: bytes of an element, and its name in safetensors
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
ALIGN = 8  # bytes: what the header is filled up to


@dataclass(frozen=True)
class NamedTensor:
    """A tensor and what it is called in the file."""

    name: str
    tensor: TensorLayout

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.tensor.shape) * DTYPES[self.tensor.dtype][0]


@dataclass(frozen=True)
class TensorFile:
    """One file: its name and what is in it, in this order."""

    name: str
    tensors: tuple[NamedTensor, ...]

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(one.size for one in self.tensors)

    def header(self, metadata: dict[str, str]) -> bytes:
        """All that comes before the tensors."""
        table: dict[str, object] = {"__metadata__": metadata}
        at = 0
        for one in self.tensors:
            entry = {"dtype": DTYPES[one.tensor.dtype][1], "shape": list(one.tensor.shape)}
            table[one.name] = {**entry, "data_offsets": [at, at + one.size]}
            at += one.size
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGN)
        return len(text).to_bytes(8, "little") + text


def chosen(manifest: Manifest, prefix: str) -> list[NamedTensor]:
    """The tensors whose names begin with `prefix`, called what follows it; wide elements first, so
    that each lies at a multiple of its own. Raises UserError, DamagedError."""
    found = [
        NamedTensor(tensor.name.removeprefix(prefix), tensor)
        for tensor in manifest.tensors
        if tensor.name.startswith(prefix)
    ]
    if not found:
        begin = f" begins with {prefix!r}" if prefix else ""
        names = ", ".join(tensor.name for tensor in manifest.tensors[:3])
        text = f"no tensor of step {manifest.step}{begin}"
        raise UserError(text, f"give --only another beginning; there are {names} and others")
    for one in found:
        check_layout(manifest, one)
    return sorted(found, key=lambda one: -DTYPES[one.tensor.dtype][0])


def check_layout(manifest: Manifest, one: NamedTensor) -> None:
    """Raises UserError for a type that no such file has, DamagedError for a layout that is none."""
    tensor = one.tensor
    if tensor.dtype not in DTYPES:
        text = f"tensor {tensor.name} is of {tensor.dtype}, which safetensors does not have"
        raise UserError(text, "spotctl ckpt pull, and docs/read_checkpoint.py")
    item, whole = DTYPES[tensor.dtype][0], 0
    for block in tensor.blocks:
        size = prod(block.shape)
        pairs = zip(block.at, block.shape, tensor.shape, strict=False)
        good = len(block.at) == len(block.shape) == len(tensor.shape)
        good = good and all(at + count <= most for at, count, most in pairs)
        good = good and block.stream < len(manifest.streams)
        if not good or block.offset + size * item > manifest.streams[block.stream].size:
            raise DamagedError(f"a block of tensor {tensor.name} lies outside of it")
        whole += size
    apart = len({block.at for block in tensor.blocks}) == len(tensor.blocks)
    if whole != prod(tensor.shape) or not apart:
        raise DamagedError(f"the blocks of tensor {tensor.name} are not all of it")


def cut(tensors: Iterable[NamedTensor], most_bytes: int) -> list[list[NamedTensor]]:
    """Into groups of at most so many bytes, but of one tensor at least."""
    groups: list[list[NamedTensor]] = [[]]
    size = 0
    for one in tensors:
        if groups[-1] and size + one.size > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += one.size
    return groups


def runs_of(
    shape: Sequence[int], block: Block, item_bytes: int, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """Where the bytes from `begin` to `end` of a block lie in the whole tensor: one behind the
    other, (first byte there, how many)."""
    lead = len(shape)  # the dimensions before it are gone through one by one
    while lead and block.shape[lead - 1] == shape[lead - 1]:
        lead -= 1
    lead = max(lead - 1, 0)
    strides = [item_bytes * prod(shape[d + 1 :]) for d in range(len(shape))]
    base = sum(at * stride for at, stride in zip(block.at, strides, strict=True))
    run = item_bytes * prod(block.shape[lead:])
    while begin < end:
        number, into = divmod(begin, run)
        place = base + into
        for d in reversed(range(lead)):
            number, index = divmod(number, block.shape[d])
            place += index * strides[d]
        count = min(run - into, end - begin)
        yield place, count
        begin += count


@dataclass(frozen=True)
class _Piece:
    """A block: its bytes in its stream, and where its tensor begins in which file."""

    start: int
    end: int
    file: int
    at: int
    tensor: TensorLayout
    block: Block


class SafetensorsWriter:
    """A sink (spotd.api_client.download). `plan(manifest)` says which files there are to be, in
    `folder`; `told` hears how many bytes came, of how many."""

    def __init__(
        self,
        folder: Path,
        plan: Callable[[Manifest], Sequence[TensorFile]],
        told: Callable[[int, int], None],
    ) -> None:
        self._folder, self._plan, self._told = folder, plan, told
        self.ref: HeadRef | None = None
        self.manifest: Manifest | None = None
        self.files: Sequence[TensorFile] = ()
        self._open: list[int] = []
        self._pieces: dict[int, list[_Piece]] = {}  # by stream, the last in it first
        self._begins: list[tuple[int, int]] = []  # of each shard: its stream and where in it
        self._active: list[_Piece] = []
        self._stream = -1
        self._at = self._done = 0

    def __enter__(self) -> SafetensorsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._open:
            os.close(number)
        self._open = []

    def opened(self, ref: HeadRef, manifest: Manifest, _data: bytes) -> None:
        self.ref, self.manifest, self.files = ref, manifest, self._plan(manifest)
        for number, stream in enumerate(manifest.streams):
            at = 0
            for shard in stream.shards:
                self._begins.append((number, at))
                at += shard.size
        metadata = {"format": "pt", "step": str(manifest.step)}
        for number, file in enumerate(self.files):
            header = file.header(metadata)
            opened = os.open(self._folder / file.name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            self._open.append(opened)
            os.pwrite(opened, header, 0)
            os.truncate(opened, len(header) + file.size)
            self._note(number, file, len(header))
        for pieces in self._pieces.values():
            pieces.sort(key=lambda piece: -piece.start)

    def _note(self, number: int, file: TensorFile, at: int) -> None:
        for one in file.tensors:
            item = DTYPES[one.tensor.dtype][0]
            for block in one.tensor.blocks:
                start, size = block.offset, prod(block.shape) * item
                piece = _Piece(start, start + size, number, at, one.tensor, block)
                if size:
                    self._pieces.setdefault(block.stream, []).append(piece)
            at += one.size

    def begin(self, number: int, _shard: Shard) -> None:
        stream, self._at = self._begins[number]
        if stream != self._stream:
            self._stream, self._active = stream, []

    def take(self, part: bytes) -> None:
        begin, end = self._at, self._at + len(part)
        waiting = self._pieces.get(self._stream, [])
        while waiting and waiting[-1].start < end:
            self._active.append(waiting.pop())
        self._active = [piece for piece in self._active if piece.end > begin]
        view = memoryview(part)
        for piece in self._active:
            self._write(piece, view, begin)
        self._at = end
        self._done += len(part)
        assert self.manifest is not None  # noqa: S101 - it came first
        self._told(self._done, self.manifest.size)

    def _write(self, piece: _Piece, view: memoryview, begin: int) -> None:
        """What of the piece is in `view`, which begins at `begin` of the stream."""
        first, last = max(piece.start, begin), min(piece.end, begin + len(view))
        item = DTYPES[piece.tensor.dtype][0]
        ends = (first - piece.start, last - piece.start)
        for place, count in runs_of(piece.tensor.shape, piece.block, item, *ends):
            _write_all(self._open[piece.file], view[first - begin :][:count], piece.at + place)
            first += count

    def end(self) -> None:
        """Nothing is known to be whole before all has come: `sync` then."""

    def sync(self) -> None:
        """It is all there: on the disk as well."""
        for number in self._open:
            os.fsync(number)


def _write_all(file: int, view: memoryview, at: int) -> None:
    while view:
        count = os.pwrite(file, view, at)
        view, at = view[count:], at + count
