"""Find the tensors in a folder of torch.distributed.checkpoint (DCP), without unpickling.

The index and each tensor's description are pickles, read by `safe_pickle`, which executes nothing.
A tensor's bytes are stored plainly, each block in a zip archive of its own inside a file.

Supports the uncompressed output of torch's FileSystemWriter; tested with torch 2.13.0.
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
    read_pickle,
)
from spotd.checkpoint_convert.safetensors_writer import DTYPES

INDEX = ".metadata"
MAX_METADATA_BYTES = 1 << 28  # size limit of the index, and of a tensor's description
_LOCAL_FILE_HEADER = struct.Struct("<26xHH")  # zip local header: lengths of name and extra field
# Errors that zipfile raises for damaged archives.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    struct.error,
    LookupError,
    ValueError,
    OSError,
    EOFError,
    RuntimeError,
)
_MODULE = "torch.distributed.checkpoint.metadata"
_FIX = "check whether all of it was copied"


@dataclass(frozen=True)
class StoredBlock:
    """One block of a tensor, as stored in a file.

    `start` is the block's first index in the tensor, `shape` its shape. Its `size` bytes, in
    row-major order, begin at byte `offset` of `file`.
    """

    name: str
    dtype: str
    tensor_shape: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: Path
    offset: int
    size: int


def read_dcp(folder: Path) -> tuple[list[StoredBlock], list[str]]:
    """Return the blocks of all tensors, and the names of entries that are not tensors.

    Raises UserError, which names the damaged tensor, and OSError.
    """
    path = folder / INDEX
    if path.stat().st_size > MAX_METADATA_BYTES:
        raise UserError(f"{INDEX} has more than {MAX_METADATA_BYTES >> 20} MiB", _FIX)
    try:
        index = _fields(read_pickle(path.read_bytes()), f"{_MODULE} Metadata")
        tensor_metadata = _pairs(index.get("state_dict_metadata")).text_keys()
        locations = _locations(_pairs(index.get("storage_data")))
    except SafePickleError as error:
        raise UserError(f"{INDEX} is none of torch's: {error}", _FIX) from None
    blocks: list[StoredBlock] = []
    left_out: list[str] = []
    for name, metadata in tensor_metadata.items():
        if isinstance(metadata, ReducedObject) and metadata.function == GlobalName(
            f"{_MODULE} TensorStorageMetadata"
        ):
            try:
                blocks += _tensor_blocks(folder, name, metadata, locations)
            except SafePickleError as error:
                raise UserError(f"tensor {name} cannot be imported: {error}", _FIX) from None
        else:
            left_out.append(name)
    return blocks, left_out


_Locations = Mapping[tuple[str, tuple[int, ...]], Mapping[str, Any]]


def _locations(stored: Pairs) -> _Locations:
    """Return the storage location of each block, by tensor name and first index."""
    locations = {}
    for key, value in stored.items:
        index = _fields(key, f"{_MODULE} MetadataIndex")
        name, start = index.get("fqn"), index.get("offset")
        if isinstance(name, str):
            locations[name, _size(start) if start is not None else ()] = _fields(value)
    return locations


def _tensor_blocks(
    folder: Path, name: str, tensor: ReducedObject, locations: _Locations
) -> list[StoredBlock]:
    fields = _fields(tensor)
    properties = fields.get("properties")
    state = properties.state if isinstance(properties, ReducedObject) else None
    dtype_name = state[0] if isinstance(state, tuple) and state else None
    dtype = dtype_name.text.removeprefix("torch ") if isinstance(dtype_name, GlobalName) else ""
    if dtype not in DTYPES:
        raise SafePickleError(f"it is of {dtype or 'no type'}, which is not supported")
    chunks = fields.get("chunks")
    if not isinstance(chunks, list):
        raise SafePickleError("it has no blocks")
    blocks = []
    for chunk in chunks:
        chunk_fields = _fields(chunk)
        start, shape = _size(chunk_fields.get("offsets")), _size(chunk_fields.get("sizes"))
        location = locations.get((name, start))
        if location is None:
            raise SafePickleError(f"its block at {list(start)} is not stored")
        file, offset = _locate_bytes(folder, location, shape, DTYPES[dtype][0])
        size = prod(shape) * DTYPES[dtype][0]
        tensor_shape = _size(fields.get("size"))
        blocks.append(
            StoredBlock(
                name=name,
                dtype=dtype,
                tensor_shape=tensor_shape,
                start=start,
                shape=shape,
                file=file,
                offset=offset,
                size=size,
            )
        )
    return blocks


def _locate_bytes(
    folder: Path, location: Mapping[str, Any], shape: tuple[int, ...], item_bytes: int
) -> tuple[Path, int]:
    """Return the file that holds a block, and the offset of its bytes."""
    name, offset, length = (location.get(key) for key in ("relative_path", "offset", "length"))
    if not isinstance(name, str) or Path(name).name != name or name in {"", ".."}:
        raise SafePickleError("its location is not a file of the folder")
    if not isinstance(offset, int) or not isinstance(length, int) or offset < 0 or length < 0:
        raise SafePickleError("its location is invalid")
    if location.get("transform_descriptors"):
        raise SafePickleError("it is compressed: save it without")
    file = folder / name
    if not file.is_file():
        raise SafePickleError(f"{name} is not there")
    with file.open("rb") as stream:
        window = _Window(stream, offset, length)
        try:
            with zipfile.ZipFile(window) as archive:
                inner_offset = _offset_in_archive(archive, shape, item_bytes)
        except SafePickleError:
            raise
        except _ZIP_ERRORS as error:
            raise SafePickleError(f"{name} is damaged at byte {offset}: {error}") from None
    return file, offset + inner_offset


def _offset_in_archive(archive: zipfile.ZipFile, shape: tuple[int, ...], item_bytes: int) -> int:
    """Return the offset of a block's bytes in its zip archive."""
    pickle_info = next(
        (info for info in archive.infolist() if info.filename.endswith("/data.pkl")), None
    )
    if (
        pickle_info is None
        or pickle_info.file_size > MAX_METADATA_BYTES
        or pickle_info.compress_type
    ):
        raise SafePickleError("nothing describes it")
    prefix = pickle_info.filename.removesuffix("data.pkl")
    key, first_element = _tensor_storage(read_pickle(archive.read(pickle_info)), shape)
    byteorder_name = f"{prefix}byteorder"
    if byteorder_name in archive.namelist():
        byteorder_info = archive.getinfo(byteorder_name)
        if (
            byteorder_info.file_size != len("little")
            or byteorder_info.compress_type
            or archive.read(byteorder_info) != b"little"
        ):
            raise SafePickleError("its byte order is not little-endian")
    data_info = archive.getinfo(f"{prefix}data/{key}")
    offset = data_info.header_offset
    file = archive.fp
    if data_info.compress_type or file is None:
        raise SafePickleError("it is compressed: save it without")
    file.seek(offset)
    name_bytes, extra_bytes = _LOCAL_FILE_HEADER.unpack(file.read(_LOCAL_FILE_HEADER.size))
    offset += int(_LOCAL_FILE_HEADER.size + name_bytes + extra_bytes) + first_element * item_bytes
    if first_element * item_bytes + prod(shape) * item_bytes > data_info.file_size:
        raise SafePickleError("its bytes are incomplete")
    if not isinstance(file, _Window) or offset + prod(shape) * item_bytes > file.length:
        raise SafePickleError("its bytes end outside of its location")
    return offset


def _tensor_storage(tensor: Any, shape: tuple[int, ...]) -> tuple[str, int]:
    """Return the key of the tensor's storage, and the index of its first element there."""
    if not isinstance(tensor, ReducedObject) or tensor.function != GlobalName(
        "torch._utils _rebuild_tensor_v2"
    ):
        raise SafePickleError("it is not a plain tensor")
    args = tensor.args
    if not isinstance(args, tuple) or len(args) < 4 or not isinstance(args[0], ReducedObject):
        raise SafePickleError("it is not a plain tensor")
    storage, first_element, size, strides = args[0].args, *args[1:4]
    if size != shape or not isinstance(first_element, int) or first_element < 0:
        raise SafePickleError(f"it is described as {size} and stored as {shape}")
    if not isinstance(strides, tuple) or len(strides) != len(shape):
        raise SafePickleError("it is not a plain tensor")
    contiguous, stride = [], 1
    for count in reversed(shape):
        contiguous.append(stride)
        stride *= count
    dimensions = zip(shape, strides, reversed(contiguous), strict=True)
    if prod(shape) and any(
        count > 1 and actual != expected for count, actual, expected in dimensions
    ):
        raise SafePickleError("it is not stored in row-major order: save it as .contiguous()")
    if not isinstance(storage, tuple) or len(storage) < 3 or not isinstance(storage[2], str):
        raise SafePickleError("it has no storage")
    return storage[2], first_element


def _fields(value: Any, type_name: str = "") -> dict[str, Any]:
    """Return the attributes that an object of the given type would get."""
    if not isinstance(value, ReducedObject) or (
        type_name and value.function != GlobalName(type_name)
    ):
        raise SafePickleError(f"there is no {type_name or 'object'} where one should be")
    return _pairs(value.state).text_keys()


def _pairs(value: Any) -> Pairs:
    if not isinstance(value, Pairs):
        raise SafePickleError("there is no dictionary where one should be")
    return value


def _size(value: Any) -> tuple[int, ...]:
    """Return the dimensions of a torch.Size."""
    sizes = (
        value.args[0]
        if isinstance(value, ReducedObject) and isinstance(value.args, tuple)
        else None
    )
    if not isinstance(sizes, tuple) or not all(type(size) is int and size >= 0 for size in sizes):
        raise SafePickleError("there is no size where one should be")
    return sizes


class _Window(io.RawIOBase):
    """A read-only view of `length` bytes of a file, from `offset` on."""

    def __init__(self, file: io.BufferedReader, offset: int, length: int) -> None:
        super().__init__()
        self._file, self._offset, self.length, self._position = file, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise OSError("before the beginning")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self.length - self._position))
        self._file.seek(self._offset + self._position)
        data = self._file.read(count)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
