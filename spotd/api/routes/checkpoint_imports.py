"""Routes that receive a checkpoint from elsewhere, for `spotctl ckpt import`.

The job that will resume from it does not exist yet; `spotctl run --continue ID` submits it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from providers.stores.base import ObjectStore, StoreConfigError, StoreDeniedError
from spotd import wire
from spotd.act import imports
from spotd.act.checkpoints import DamagedError, ShardCheck
from spotd.act.imports import CHUNK_BYTES, KIND, SHARD_BYTES
from spotd.api.request.context import ApiContext
from spotd.api.request.request import ApiRequest, bad_input, conflict
from spotd.api_routes import routes
from spotd.wire import Manifest, Shard, WireError

_ID = re.compile(r"j[a-z0-9]{9}")
_DIGESTS = re.compile(r"[0-9a-f]{32}(,[0-9a-f]{32}){0,7}")
_AGAIN = "run spotctl ckpt import again"
_MOST = 10**9
PART_BYTES = 4 << 20


def begin_import(call: ApiRequest) -> dict[str, Any]:
    """Reserve an id for the job that will continue from the checkpoint, and choose the store."""
    store = call.text("store") or call.context.settings.defaults().store
    _open(call.context, store)
    return {"kind": "Import", "id": call.context.ids.job_id(), "store": store}


async def receive_shard(
    context: ApiContext, job_id: str, query: Mapping[str, str], chunks: AsyncIterator[bytes]
) -> Shard:
    """Store the shard that the query describes once its bytes have the digests that it says. Raises
    ApiError."""
    objects = await run_in_threadpool(_open, context, query.get("store", ""))
    shard = _shard(_unused_job_id(context, job_id), query)
    context.storage.spool_dir.mkdir(parents=True, exist_ok=True)
    check = ShardCheck(shard)
    with tempfile.NamedTemporaryFile(dir=context.storage.spool_dir, prefix="import-") as spool:
        try:
            async for part in _in_large_parts(chunks):
                await run_in_threadpool(check.feed, part)
                await run_in_threadpool(spool.write, part)
            check.end()
        except DamagedError as error:
            raise bad_input(f"the received data is damaged: {error}", _AGAIN) from None
        spool.flush()
        try:
            await run_in_threadpool(imports.put_shard, objects, job_id, shard, Path(spool.name))
        except imports.JobIdTakenError as error:
            raise conflict(str(error), _AGAIN) from None
    return shard


async def _in_large_parts(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the bytes in larger parts, because each part costs a change of threads."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        if len(buffer) >= PART_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


def commit_import(call: ApiRequest) -> dict[str, Any]:
    """Finish the upload: write the manifest and HEAD. Neither replaces an existing object."""
    objects = _open(call.context, call.text("store"))
    manifest = _manifest(call, _unused_job_id(call.context, call.path["name"]))
    try:
        ref = imports.commit(objects, manifest, call.context.ids.token())
    except (imports.JobIdTakenError, imports.ImportMismatchError) as error:
        raise conflict(str(error), _AGAIN) from None
    return {"kind": "Imported", "id": manifest.job, "step": ref.step, "bytes": manifest.size}


def _manifest(call: ApiRequest, job_id: str) -> Manifest:
    body = call.body.get("manifest")
    if not isinstance(body, dict):
        raise bad_input("manifest must be an object", "use the daemon's own spotctl")
    overrides = {"job": job_id, "generation": imports.GENERATION, "final": False}
    try:
        manifest = wire.parse_manifest(wire.encode({"manifest": {**body, **overrides}}))
    except (WireError, ValueError, RecursionError) as error:
        raise bad_input(f"the manifest cannot be read: {error}", _AGAIN) from None
    for stream, shards in enumerate(manifest.streams):
        for number, shard in enumerate(shards.shards):
            if shard.key != imports.shard_key(job_id, manifest.step, stream, number):
                raise bad_input(f"{shard.key[:80]!r} is not a shard of this import", _AGAIN)
    if not manifest.tensors or not manifest.shards or manifest.step >= _MOST:
        raise bad_input("the manifest has no tensors, no bytes or no such step", _AGAIN)
    return manifest


def _shard(job_id: str, query: Mapping[str, str]) -> Shard:
    numbers = []
    for name, maximum in (("step", _MOST), ("stream", 99_999), ("number", 99_999), ("size", 0)):
        value = query.get(name, "")
        is_number = value.isascii() and value.isdecimal() and len(value) < 12
        if not is_number or int(value) > (maximum or SHARD_BYTES):
            raise bad_input(f"{name} is {value[:20]!r}", "use the daemon's own spotctl")
        numbers.append(int(value))
    step, stream, number, size = numbers
    digests = query.get("digests", "")
    count = -(-size // CHUNK_BYTES)
    if not _DIGESTS.fullmatch(digests) or digests.count(",") + 1 != count:
        raise bad_input(f"digests must be {count} of {KIND}", "use the daemon's own spotctl")
    key = imports.shard_key(job_id, step, stream, number)
    return Shard(key, size, CHUNK_BYTES, tuple(digests.split(",")), KIND)


def _unused_job_id(context: ApiContext, job_id: str) -> str:
    """Return the id if no job has it. Raises ApiError."""
    if not _ID.fullmatch(job_id):
        raise bad_input(f"{job_id[:80]!r} is not a job's id", f"{routes.BEGIN_IMPORT} returns one")
    if context.store.jobs.names([job_id]):
        raise conflict(f"job {job_id} already exists", f"{routes.BEGIN_IMPORT} returns a new id")
    return job_id


def _open(context: ApiContext, url: str) -> ObjectStore:
    try:
        return context.storage.open_store(url)
    except (StoreConfigError, StoreDeniedError) as error:
        message = f"the daemon cannot open the store {url[:200]!r}: {error}"
        raise bad_input(message, "name one of [stores] in its config.toml") from None
