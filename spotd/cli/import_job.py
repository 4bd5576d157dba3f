"""Import of a foreign checkpoint, or of another job's, as the first checkpoint of a new job.

`spotctl ckpt import` uses it, and `checkpoint.from` of a job file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotd.act.checkpoints import DamagedError
from spotd.api_client.client import Client
from spotd.api_client.download import damage_error, fetch_checkpoint
from spotd.api_client.resumable_import import ResumableImport, open_import
from spotd.api_client.upload import CheckpointUpload
from spotd.api_routes import routes
from spotd.base.errors import ExitCode, UserError
from spotd.checkpoint_convert.dcp_reader import StoredBlock
from spotd.checkpoint_convert.foreign_checkpoint import read_source
from spotd.checkpoint_convert.safetensors_writer import NamedTensor, check_layout
from spotd.wire import Block, HeadRef, Manifest, Shard, Stream, TensorLayout

if TYPE_CHECKING:
    from spotd.spec.sources import CheckpointOrigin

ALIGN = 64  # bytes: every tensor starts at a multiple, as in all checkpoints that spotd saves
READ_BYTES = 8 << 20
OnProgress = Callable[[int, int], None]


@contextmanager
def import_checkpoint(
    client: Client, origin: CheckpointOrigin, store: str, on_progress: OnProgress, *, only: str = ""
) -> Iterator[dict[str, Any]]:
    """Import a checkpoint and yield its description to a block that uses it.

    If the block fails, the next attempt resumes the import. Of a folder, only tensors whose names
    begin with `only` are imported. Raises UserError.
    """
    source = [str(origin.folder), only] if origin.folder else [origin.job, origin.which]
    with open_import(client, store, ["folder" if origin.folder else "job", *source]) as session:
        if origin.folder:
            yield _import_folder(
                session=session, folder=origin.folder, only=only, on_progress=on_progress
            )
        else:
            yield _import_job(
                session=session, job=origin.job, which=origin.which, on_progress=on_progress
            )


def _import_folder(
    session: ResumableImport, folder: Path, only: str, on_progress: OnProgress
) -> dict[str, Any]:
    """Import the weights in a folder, or a complete checkpoint exported there. Raises UserError."""
    source = read_source(folder, only)
    layouts, total_bytes = tensor_layouts(source.tensors)
    if not total_bytes:
        raise UserError(f"{folder} has no tensor with a number in it", "name another one")
    session.open()
    step = source.step
    upload = CheckpointUpload(session, step, lambda done: on_progress(done, total_bytes))
    for tensor in source.tensors:
        for chunk in _read_chunks(tensor):
            upload.write(chunk)
        upload.write(bytes(-tensor.size % ALIGN))
    upload.end_stream()
    default_state = {"step": 0, "imported": {"tensors": len(layouts)}}
    result = _commit(
        session=session,
        upload=upload,
        step=step,
        tensors=layouts,
        state=source.state or default_state,
        world_size=1,
    )
    return {**result, "left_out": list(source.left_out)}


def _import_job(
    session: ResumableImport, job: str, which: str, on_progress: OnProgress
) -> dict[str, Any]:
    """Import another job's complete checkpoint, with optimizer and step. Raises UserError."""
    copy = _CopySink(session, on_progress)
    try:
        fetch_checkpoint(sink=copy, client=session.client, job_id=job, which=which)
    except DamagedError as error:
        raise damage_error(error) from None
    return copy.finish()


def tensor_layouts(blocks: Sequence[StoredBlock]) -> tuple[tuple[TensorLayout, ...], int]:
    """Return the layouts of the blocks' tensors, laid out one after another, and their total size.

    Raises UserError if the blocks of a tensor do not cover all of it.
    """
    layouts: dict[str, TensorLayout] = {}
    total_bytes = 0
    for stored in blocks:
        known = layouts.get(stored.name)
        layout = known or TensorLayout(stored.name, stored.dtype, stored.tensor_shape, ())
        block = Block(stored.start, stored.shape, 0, total_bytes)
        layouts[stored.name] = replace(layout, blocks=(*layout.blocks, block))
        total_bytes += -(-stored.size // ALIGN) * ALIGN
    manifest = Manifest("", 1, 0, 0, 1, (Stream((Shard("", total_bytes, 1, ()),)),))
    try:
        for name, layout in layouts.items():
            check_layout(manifest, NamedTensor(name, layout))
    except DamagedError as error:
        raise UserError(str(error), "check that it was copied completely") from None
    return tuple(layouts.values()), total_bytes


def _read_chunks(tensor: StoredBlock) -> Iterator[bytes]:
    remaining = tensor.size
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        while remaining:
            chunk = file.read(min(remaining, READ_BYTES))
            if not chunk:
                raise UserError(
                    f"{tensor.file.name} became shorter in the meantime", "run it again"
                )
            remaining -= len(chunk)
            yield chunk


def _commit(
    session: ResumableImport,
    upload: CheckpointUpload,
    step: int,
    tensors: Sequence[TensorLayout],
    state: Mapping[str, Any],
    *,
    world_size: int,
) -> dict[str, Any]:
    manifest = {
        "step": step,
        "created_at_us": session.created_at_us,
        "world_size": world_size,
        "streams": [asdict(stream) for stream in upload.streams],
        "tensors": [asdict(tensor) for tensor in tensors],
        "state": dict(state),
    }
    body = {"store": session.store, "manifest": manifest}
    commit = routes.COMMIT_IMPORT(name=session.id)
    reply = session.send(lambda: session.client.call(commit, body))
    return {
        "apiVersion": reply["apiVersion"],
        "kind": "CheckpointImported",
        "id": reply["id"],
        "store": session.store,
        "step": step,
        "tensors": len(tensors),
        "bytes": reply["bytes"],
        "weights_only": "imported" in state,
        "left_out": [],
    }


class _CopySink:
    """Sink (spotd.api_client.download) that uploads another job's checkpoint as it arrives."""

    def __init__(self, session: ResumableImport, on_progress: OnProgress) -> None:
        self._session, self._on_progress = session, on_progress
        self._upload: CheckpointUpload | None = None
        self._manifest: Manifest | None = None
        self._streams: list[int] = []  # stream number of each shard

    def begin_checkpoint(self, ref: HeadRef, manifest: Manifest, _data: bytes) -> None:
        total_bytes = manifest.size
        if not manifest.tensors or not total_bytes:
            message = f"step {ref.step} has no tensors: it ends a job that saved nothing with spotd"
            raise UserError(message, "spotctl ckpt ls names others", ExitCode.NOT_FOUND)
        self._manifest = manifest
        for number, stream in enumerate(manifest.streams):
            self._streams += [number] * len(stream.shards)
        on_progress = self._on_progress
        self._session.open()
        self._upload = CheckpointUpload(
            self._session, ref.step, lambda done: on_progress(done, total_bytes)
        )

    def begin_shard(self, number: int, _shard: Shard) -> None:
        self._end_streams_before(self._streams[number])

    def write(self, part: bytes) -> None:
        """Upload bytes before they are verified; the commit comes after the last verification."""
        self._open_upload.write(part)

    def end_shard(self) -> None:
        """Do nothing: the upload cuts its own shards."""

    def finish(self) -> dict[str, Any]:
        """Commit the import, once every shard has arrived."""
        manifest = self._manifest
        assert manifest is not None  # noqa: S101 - the manifest arrives first
        self._end_streams_before(len(manifest.streams))
        return _commit(
            session=self._session,
            upload=self._open_upload,
            step=manifest.step,
            tensors=manifest.tensors,
            state=manifest.state,
            world_size=manifest.world_size,
        )

    def _end_streams_before(self, number: int) -> None:
        while len(self._open_upload.streams) < number:
            self._open_upload.end_stream()

    @property
    def _open_upload(self) -> CheckpointUpload:
        assert self._upload is not None  # noqa: S101 - `begin_checkpoint` made it
        return self._upload
