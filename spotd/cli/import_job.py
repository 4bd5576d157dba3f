"""What `spotctl ckpt import` does, and `checkpoint.from`: a foreign checkpoint, or another job's,
becomes the first one of a job that is submitted next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotd.act.checkpoints import DamagedError
from spotd.api_client.client import Client
from spotd.api_client.download import fetch_into, refused
from spotd.api_client.resumable_import import UnfinishedImport, begin
from spotd.api_client.upload import CheckpointUpload
from spotd.base.errors import ExitCode, UserError
from spotd.checkpoint_convert.dcp_reader import StoredBlock
from spotd.checkpoint_convert.foreign_checkpoint import read_source
from spotd.checkpoint_convert.safetensors_writer import NamedTensor, check_layout
from spotd.wire import Block, HeadRef, Manifest, Shard, Stream, TensorLayout

if TYPE_CHECKING:
    from spotd.spec.sources import CheckpointOrigin

ALIGN = 64  # bytes: where tensors begin, as all that we save does
READ_BYTES = 8 << 20
Told = Callable[[int, int], None]


@contextmanager
def imported(
    client: Client, origin: CheckpointOrigin, store: str, told: Told, *, only: str = ""
) -> Iterator[dict[str, Any]]:
    """What was imported, for a block that uses it: until that ends well, none of what was sent has
    to be sent again. Of a folder's tensors those whose names begin with `only`. Raises UserError.
    """
    source = [str(origin.folder), only] if origin.folder else [origin.job, origin.which]
    with begin(client, store, ["folder" if origin.folder else "job", *source]) as begun:
        if origin.folder:
            yield _import_folder(begun, origin.folder, only, told)
        else:
            yield _import_job(begun, origin.job, origin.which, told)


def _import_folder(begun: UnfinishedImport, folder: Path, only: str, told: Told) -> dict[str, Any]:
    """Weights, or a whole checkpoint that was exported. Raises UserError."""
    source = read_source(folder, only)
    layouts, size = checked_layouts(source.tensors)
    if not size:
        raise UserError(f"{folder} has no tensor with a number in it", "name another one")
    begun.open()
    step = source.step
    out = CheckpointUpload(begun, step, lambda done: told(done, size))
    for tensor in source.tensors:
        for part in _bytes_of(tensor):
            out.take(part)
        out.take(bytes(-tensor.size % ALIGN))
    out.end_stream()
    state = {"step": 0, "imported": {"tensors": len(layouts)}}
    found = _commit(begun, out, step, layouts, source.state or state, world_size=1)
    return {**found, "left_out": list(source.left_out)}


def _import_job(begun: UnfinishedImport, job: str, which: str, told: Told) -> dict[str, Any]:
    """All of another job's checkpoint, its optimizer and its step included. Raises UserError."""
    copy = _Copy(begun, told)
    try:
        fetch_into(copy, begun.client, job, which)
    except DamagedError as error:
        raise refused(error) from None
    return copy.finish()


def checked_layouts(blocks: Sequence[StoredBlock]) -> tuple[tuple[TensorLayout, ...], int]:
    """One behind the other; and bytes in all. Raises UserError for blocks that are not all of their
    tensor."""
    found: dict[str, TensorLayout] = {}
    end = 0
    for one in blocks:
        before = found.get(one.name) or TensorLayout(one.name, one.dtype, one.whole, ())
        block = Block(one.start, one.shape, 0, end)
        found[one.name] = replace(before, blocks=(*before.blocks, block))
        end += -(-one.size // ALIGN) * ALIGN
    manifest = Manifest("", 1, 0, 0, 1, (Stream((Shard("", end, 1, ()),)),))
    try:
        for name, layout in found.items():
            check_layout(manifest, NamedTensor(name, layout))
    except DamagedError as error:
        raise UserError(str(error), "look whether all of it was copied") from None
    return tuple(found.values()), end


def _bytes_of(tensor: StoredBlock) -> Iterator[bytes]:
    left = tensor.size
    with tensor.file.open("rb") as file:
        file.seek(tensor.at)
        while left:
            part = file.read(min(left, READ_BYTES))
            if not part:
                raise UserError(f"{tensor.file.name} became shorter meanwhile", "run it again")
            left -= len(part)
            yield part


def _commit(
    begun: UnfinishedImport,
    out: CheckpointUpload,
    step: int,
    tensors: Sequence[TensorLayout],
    state: Mapping[str, Any],
    *,
    world_size: int,
) -> dict[str, Any]:
    manifest = {
        "step": step,
        "created_at_us": begun.created_at_us,
        "world_size": world_size,
        "streams": [asdict(stream) for stream in out.streams],
        "tensors": [asdict(tensor) for tensor in tensors],
        "state": dict(state),
    }
    body = {"store": begun.store, "manifest": manifest}
    said = begun.ask(lambda: begun.client.post(f"/v1/imports/{begun.id}", body))
    return {
        "apiVersion": said["apiVersion"],
        "kind": "CheckpointImported",
        "id": said["id"],
        "store": begun.store,
        "step": step,
        "tensors": len(tensors),
        "bytes": said["bytes"],
        "weights_only": "imported" in state,
        "left_out": [],
    }


class _Copy:
    """A sink (spotd.api_client.download): what comes from the daemon goes back to it, stream by
    stream."""

    def __init__(self, begun: UnfinishedImport, told: Told) -> None:
        self._begun, self._told = begun, told
        self._out: CheckpointUpload | None = None
        self._manifest: Manifest | None = None
        self._streams: list[int] = []  # of each shard, the number of its stream

    def opened(self, ref: HeadRef, manifest: Manifest, _data: bytes) -> None:
        size = manifest.size
        if not manifest.tensors or not size:
            text = f"step {ref.step} has no tensors: it ends a job that saved nothing with spotd"
            raise UserError(text, "spotctl ckpt ls names others", ExitCode.NOT_FOUND)
        self._manifest = manifest
        for number, stream in enumerate(manifest.streams):
            self._streams += [number] * len(stream.shards)
        told = self._told
        self._begun.open()
        self._out = CheckpointUpload(self._begun, ref.step, lambda done: told(done, size))

    def begin(self, number: int, _shard: Shard) -> None:
        self._end_before(self._streams[number])

    def take(self, part: bytes) -> None:
        """What is verified only later is committed only then."""
        self._sent.take(part)

    def end(self) -> None:
        """Shards are cut anew."""

    def finish(self) -> dict[str, Any]:
        """All came."""
        manifest = self._manifest
        assert manifest is not None  # noqa: S101 - it came first
        self._end_before(len(manifest.streams))
        return _commit(
            self._begun,
            self._sent,
            manifest.step,
            manifest.tensors,
            manifest.state,
            world_size=manifest.world_size,
        )

    def _end_before(self, number: int) -> None:
        while len(self._sent.streams) < number:
            self._sent.end_stream()

    @property
    def _sent(self) -> CheckpointUpload:
        assert self._out is not None  # noqa: S101 - `opened` made it
        return self._out
