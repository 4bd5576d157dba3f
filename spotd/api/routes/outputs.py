"""Routes about the files that a job leaves, which use the daemon's own access to the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from providers.stores.base import ObjectStore
from spotd import wire
from spotd.act.checkpoints import shard_bytes
from spotd.act.outputs import OutputFolder, merge_outputs
from spotd.api.request.request import ApiRequest, conflict, not_found
from spotd.api.routes.checkpoints import download_header, open_stores, read_checkpoints
from spotd.api.views.resources import iso
from spotd.domain.events import Event
from spotd.domain.job import Job
from spotd.store.outputs import OUTPUTS_REMOVED, StoredOutput
from spotd.wire import HeadRef


def list_outputs(call: ApiRequest) -> dict[str, Any]:
    """List the files that a job left: those of its uploads, and its program's own checkpoints."""
    job = call.job()
    _, folder, digest = _merge(call, job)
    rows = call.context.store.outputs.rows(job.id)
    uploads = [row for row in rows if not row.removed_at_us]
    removed = [f"its files were removed {iso(at)}" for at in _removals(rows)]
    return {
        "kind": "OutputList",
        "job": job.name,
        "id": job.id,
        "store": job.spec.checkpoint.store,
        "generation": folder.manifest.generation,
        "manifest": "",
        "digest": digest,
        "bytes": folder.manifest.size,
        "items": [
            {"path": file.path, "bytes": stream.size, "modified_at": iso(file.modified_us)}
            for file, stream in zip(folder.saved.files, folder.manifest.streams, strict=True)
        ],
        "uploads": [
            {
                "generation": upload.generation,
                "rank": upload.rank,
                "stored_at": iso(upload.stored_at_us),
                "files": upload.files,
                "bytes": upload.bytes,
                "new_bytes": upload.new_bytes,
                "text": upload.text,
            }
            for upload in uploads
        ],
        "problems": [
            *removed,
            *folder.problems,
            *([] if removed else _missing(job, folder, [u.text for u in uploads[-1:]])),
        ],
    }


def _missing(job: Job, folder: OutputFolder, texts: list[str]) -> list[str]:
    """Return the files that the newest upload left out, or the reason why there is no upload."""
    problems = [text for text in texts if text]
    if folder.saved.files or problems or folder.problems:
        return problems
    if job.spec.files.outputs == ():
        return ["its job file says outputs: [], so nothing is uploaded"]
    if job.outcome is None:
        return ["its files are uploaded when the program ends, and at a pause or a cancel"]
    return ["no file changed below its workdir; name others in spotd: {outputs: [...]}"]


def _removals(rows: Sequence[StoredOutput]) -> list[int]:
    """Return when files were removed of which nothing newer has been stored since."""
    removed_us = {row.removed_at_us for row in rows if row.removed_at_us}
    return sorted(removed_us)[-1:] if all(row.removed_at_us for row in rows) else []


def remove_outputs(call: ApiRequest) -> dict[str, Any]:
    """Delete the files that a job left from its store. Its checkpoints stay."""
    job, store = call.job(), call.context.store
    if any(node.active for node in store.nodes.of_job(job.id)):
        raise conflict(
            f"job {job.name} has a machine, which may be storing files",
            f"spotctl pause {job.name}, or spotctl cancel {job.name} --no-outputs first",
        )
    objects = call.context.storage.open_store(job.spec.checkpoint.store)
    found = list(objects.list(wire.outputs_folder(job.id)))
    for info in found:
        objects.delete(info.key)
    size = sum(info.size for info in found)
    # Afterwards: what could not be deleted is still shown, and still costs.
    text = f"{call.actor or 'a user'} removed its {len(found)} stored objects of outputs"
    store.events.add(job.id, Event(OUTPUTS_REMOVED, text), call.now_us)
    return {"kind": "OutputsRemoved", "job": job.name, "objects": len(found), "bytes": size}


def pull_outputs(call: ApiRequest) -> Iterator[bytes]:
    """A line of JSON, the manifest of all files, and its shards from number `first` on."""
    job = call.job()
    objects, folder, digest = _merge(call, job)
    if not folder.saved.entries:
        raise not_found(f"job {job.name} has left no files", f"spotctl outputs {job.name}")
    first, data = call.number("first", 0, 0, 1 << 31), folder.manifest.to_bytes()
    header = download_header(HeadRef(folder.manifest.generation, 0, "", digest), data)

    def run() -> Iterator[bytes]:
        yield header
        for shard in folder.manifest.shards[first:]:
            yield from shard_bytes(objects, shard)

    return run()


def _merge(call: ApiRequest, job: Job) -> tuple[ObjectStore, OutputFolder, str]:
    """Return the job's stores, its files, and the digest of their manifest."""
    objects, checkpoint = open_stores(call, job), None
    if job.spec.checkpoint.directory:
        newest = read_checkpoints(call, job).newest
        checkpoint = newest.manifest if newest else None
    folder = merge_outputs(
        objects,
        job.id,
        [row for row in call.context.store.outputs.rows(job.id) if not row.removed_at_us],
        checkpoint=checkpoint,
        folder=job.spec.checkpoint.directory,
    )
    return objects, folder, wire.sha256(folder.manifest.to_bytes())
