"""The folder of torch.distributed.checkpoint: where its tensors lie. Its index and what describes
each tensor are pickles, which are read as what they say (spotd.checkpoint_convert.safe_pickle); a
tensor's bytes stand plainly in the files, in a zip archive for each block.

Written for what torch's own FileSystemWriter saves, uncompressed; tested with torch 2.13.0.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from spotd.base.errors import UserError
from spotd.checkpoint_convert.safe_pickle import (
    GlobalName,
    Pairs,
    ReducedObject,
    SafePickleError,
    read_inert,
)
from spotd.checkpoint_convert.safetensors_writer import DTYPES

INDEX = ".metadata"
MOST_BYTES = 1 << 28  # of an index, and of what describes a tensor
_LOCAL = struct.Struct("<26xHH")  # of a zip archive: how long name and extra are
# What zipfile raises for an archive that is none.
_DAMAGED = (
    zipfile.BadZipFile,
    struct.error,
    LookupError,
    ValueError,
    OSError,
    EOFError,
    RuntimeError,
)
_MODULE = "torch.distributed.checkpoint.metadata"
_WHOLE = "look whether all of it was copied"


@dataclass(frozen=True)
class StoredBlock:
    """A block of tensor `name`, from index `start` of the `whole`: `size` bytes of `file` from byte
    `at` on, row by row."""

    name: str
    dtype: str
    whole: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: Path
    at: int
    size: int


def read_dcp(folder: Path) -> tuple[list[StoredBlock], list[str]]:
    """All blocks of its tensors; and the names of what is no tensor. Raises UserError, which names
    the tensor that is wrong, and OSError."""
    path = folder / INDEX
    if path.stat().st_size > MOST_BYTES:
        raise UserError(f"{INDEX} has more than {MOST_BYTES >> 20} MiB", _WHOLE)
    try:
        index = _fields(read_inert(path.read_bytes()), f"{_MODULE} Metadata")
        described = _pairs(index.get("state_dict_metadata")).named()
        places = _places(_pairs(index.get("storage_data")))
    except SafePickleError as error:
        raise UserError(f"{INDEX} is none of torch's: {error}", _WHOLE) from None
    found: list[StoredBlock] = []
    rest: list[str] = []
    for name, one in described.items():
        if isinstance(one, ReducedObject) and one.of == GlobalName(
            f"{_MODULE} TensorStorageMetadata"
        ):
            try:
                found += _blocks(folder, name, one, places)
            except SafePickleError as error:
                raise UserError(f"tensor {name} cannot be imported: {error}", _WHOLE) from None
        else:
            rest.append(name)
    return found, rest


_Places = Mapping[tuple[str, tuple[int, ...]], Mapping[str, Any]]


def _places(stored: Pairs) -> _Places:
    """By name and by where a block begins."""
    found = {}
    for key, value in stored.items:
        index = _fields(key, f"{_MODULE} MetadataIndex")
        name, start = index.get("fqn"), index.get("offset")
        if isinstance(name, str):
            found[name, _size(start) if start is not None else ()] = _fields(value)
    return found


def _blocks(folder: Path, name: str, tensor: ReducedObject, places: _Places) -> list[StoredBlock]:
    fields = _fields(tensor)
    properties = fields.get("properties")
    state = properties.state if isinstance(properties, ReducedObject) else None
    kind = state[0] if isinstance(state, tuple) and state else None
    dtype = kind.text.removeprefix("torch ") if isinstance(kind, GlobalName) else ""
    if dtype not in DTYPES:
        raise SafePickleError(f"it is of {dtype or 'no type'}, which is not known here")
    chunks = fields.get("chunks")
    if not isinstance(chunks, list):
        raise SafePickleError("it has no blocks")
    found = []
    for chunk in chunks:
        about = _fields(chunk)
        start, shape = _size(about.get("offsets")), _size(about.get("sizes"))
        place = places.get((name, start))
        if place is None:
            raise SafePickleError(f"its block at {list(start)} is stored nowhere")
        file, at = _bytes_at(folder, place, shape, DTYPES[dtype][0])
        size = prod(shape) * DTYPES[dtype][0]
        whole = _size(fields.get("size"))
        found.append(StoredBlock(name, dtype, whole, start, shape, file, at, size))
    return found


def _bytes_at(
    folder: Path, place: Mapping[str, Any], shape: tuple[int, ...], item: int
) -> tuple[Path, int]:
    """The file that has the block, and where its bytes begin there."""
    name, at, length = (place.get(key) for key in ("relative_path", "offset", "length"))
    if not isinstance(name, str) or Path(name).name != name or name in {"", ".."}:
        raise SafePickleError("its place is no file of the folder")
    if not isinstance(at, int) or not isinstance(length, int) or at < 0 or length < 0:
        raise SafePickleError("its place is none")
    if place.get("transform_descriptors"):
        raise SafePickleError("it is compressed: save it without")
    file = folder / name
    if not file.is_file():
        raise SafePickleError(f"{name} is not there")
    with file.open("rb") as opened:
        window = _Window(opened, at, length)
        try:
            with zipfile.ZipFile(window) as archive:
                inside = _inside(archive, shape, item)
        except SafePickleError:
            raise
        except _DAMAGED as error:
            raise SafePickleError(f"{name} is damaged at byte {at}: {error}") from None
    return file, at + inside


def _inside(archive: zipfile.ZipFile, shape: tuple[int, ...], item: int) -> int:
    """Where the block's bytes begin in torch's archive of it."""
    about = next((one for one in archive.infolist() if one.filename.endswith("/data.pkl")), None)
    if about is None or about.file_size > MOST_BYTES or about.compress_type:
        raise SafePickleError("nothing describes it")
    top = about.filename.removesuffix("data.pkl")
    key, first = _described(read_inert(archive.read(about)), shape)
    order = f"{top}byteorder"
    if order in archive.namelist():
        small = archive.getinfo(order)
        if (
            small.file_size != len("little")
            or small.compress_type
            or archive.read(small) != b"little"
        ):
            raise SafePickleError("its bytes are in the other order")
    data = archive.getinfo(f"{top}data/{key}")
    begin = data.header_offset
    opened = archive.fp
    if data.compress_type or opened is None:
        raise SafePickleError("it is compressed: save it without")
    opened.seek(begin)
    name_bytes, extra_bytes = _LOCAL.unpack(opened.read(_LOCAL.size))
    begin += int(_LOCAL.size + name_bytes + extra_bytes) + first * item
    if first * item + prod(shape) * item > data.file_size:
        raise SafePickleError("its bytes are cut")
    if not isinstance(opened, _Window) or begin + prod(shape) * item > opened.length:
        raise SafePickleError("its bytes end outside of its place")
    return begin


def _described(tensor: Any, shape: tuple[int, ...]) -> tuple[str, int]:
    """The key of its storage, and the element of that with which it begins."""
    if not isinstance(tensor, ReducedObject) or tensor.of != GlobalName(
        "torch._utils _rebuild_tensor_v2"
    ):
        raise SafePickleError("it is no plain tensor")
    args = tensor.args
    if not isinstance(args, tuple) or len(args) < 4 or not isinstance(args[0], ReducedObject):
        raise SafePickleError("it is no plain tensor")
    storage, first, size, strides = args[0].args, *args[1:4]
    if size != shape or not isinstance(first, int) or first < 0:
        raise SafePickleError(f"it is described as {size} and stored as {shape}")
    if not isinstance(strides, tuple) or len(strides) != len(shape):
        raise SafePickleError("it is no plain tensor")
    wanted, step = [], 1
    for count in reversed(shape):
        wanted.append(step)
        step *= count
    rows = zip(shape, strides, reversed(wanted), strict=True)
    if prod(shape) and any(count > 1 and have != want for count, have, want in rows):
        raise SafePickleError("it does not lie row by row: save it as .contiguous()")
    if not isinstance(storage, tuple) or len(storage) < 3 or not isinstance(storage[2], str):
        raise SafePickleError("it has no storage")
    return storage[2], first


def _fields(one: Any, of: str = "") -> dict[str, Any]:
    """What an object would be given."""
    if not isinstance(one, ReducedObject) or (of and one.of != GlobalName(of)):
        raise SafePickleError(f"there is no {of or 'object'} where one should be")
    return _pairs(one.state).named()


def _pairs(one: Any) -> Pairs:
    if not isinstance(one, Pairs):
        raise SafePickleError("there is no dictionary where one should be")
    return one


def _size(one: Any) -> tuple[int, ...]:
    """Of a torch.Size."""
    found = one.args[0] if isinstance(one, ReducedObject) and isinstance(one.args, tuple) else None
    if not isinstance(found, tuple) or not all(type(n) is int and n >= 0 for n in found):
        raise SafePickleError("there is no size where one should be")
    return found


class _Window(io.RawIOBase):
    """Part of a file, as one."""

    def __init__(self, file: io.BufferedReader, at: int, length: int) -> None:
        super().__init__()
        self._file, self._at, self.length, self._place = file, at, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise OSError("before the beginning")
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, into: Any) -> int:
        count = max(0, min(len(into), self.length - self._place))
        self._file.seek(self._at + self._place)
        data = self._file.read(count)
        into[: len(data)] = data
        self._place += len(data)
        return len(data)
