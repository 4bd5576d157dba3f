"""Routes by which a checkpoint comes from elsewhere: `spotctl ckpt import`. The job whose first one
it is does not exist yet; `spotctl run --continue ID` submits it."""

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
from spotd.api.request.request import ApiContext, ApiRequest, bad_input, conflict
from spotd.wire import Manifest, Shard, WireError

_ID = re.compile(r"j[a-z0-9]{9}")
_DIGESTS = re.compile(r"[0-9a-f]{32}(,[0-9a-f]{32}){0,7}")
_AGAIN = "run spotctl ckpt import again"
_MOST = 10**9
PART_BYTES = 4 << 20


def begin_import(call: ApiRequest) -> dict[str, Any]:
    """An id for the job that will go on from it, and the store in which it will be."""
    store = call.text("store") or call.backing.defaults().store
    _open(call.backing, store)
    return {"kind": "Import", "id": call.backing.ids.job_id(), "store": store}


async def receive_shard(
    backing: ApiContext, job_id: str, query: Mapping[str, str], chunks: AsyncIterator[bytes]
) -> Shard:
    """Store the shard that the query describes once its bytes have the digests that it says. Raises
    ApiError."""
    objects = await run_in_threadpool(_open, backing, query.get("store", ""))
    shard = _shard(_unknown(backing, job_id), query)
    backing.spool_dir.mkdir(parents=True, exist_ok=True)
    check = ShardCheck(shard)
    with tempfile.NamedTemporaryFile(dir=backing.spool_dir, prefix="import-") as spool:
        try:
            async for part in _gathered(chunks):
                await run_in_threadpool(check.feed, part)
                await run_in_threadpool(spool.write, part)
            check.end()
        except DamagedError as error:
            raise bad_input(f"what came is not what was sent: {error}", _AGAIN) from None
        spool.flush()
        try:
            await run_in_threadpool(imports.put_shard, objects, job_id, shard, Path(spool.name))
        except imports.JobIdTakenError as error:
            raise conflict(str(error), _AGAIN) from None
    return shard


async def _gathered(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """In larger parts: each costs a change of threads."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        if len(held) >= PART_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def commit_import(call: ApiRequest) -> dict[str, Any]:
    """All shards are there: the manifest, and HEAD, by writes that only create."""
    objects = _open(call.backing, call.text("store"))
    manifest = _manifest(call, _unknown(call.backing, call.path["name"]))
    try:
        ref = imports.commit(objects, manifest, call.backing.ids.token())
    except (imports.JobIdTakenError, imports.ImportMismatchError) as error:
        raise conflict(str(error), _AGAIN) from None
    return {"kind": "Imported", "id": manifest.job, "step": ref.step, "bytes": manifest.size}


def _manifest(call: ApiRequest, job_id: str) -> Manifest:
    sent = call.body.get("manifest")
    if not isinstance(sent, dict):
        raise bad_input("manifest must be an object", "use the daemon's own spotctl")
    ours = {"job": job_id, "generation": imports.GENERATION, "final": False}
    try:
        found = wire.parse_manifest(wire.encode({"manifest": {**sent, **ours}}))
    except (WireError, ValueError, RecursionError) as error:
        raise bad_input(f"the manifest cannot be read: {error}", _AGAIN) from None
    for stream, shards in enumerate(found.streams):
        for number, shard in enumerate(shards.shards):
            if shard.key != imports.shard_key(job_id, found.step, stream, number):
                raise bad_input(f"{shard.key[:80]!r} is no shard of this import", _AGAIN)
    if not found.tensors or not found.shards or found.step >= _MOST:
        raise bad_input("the manifest has no tensors, no bytes or no such step", _AGAIN)
    return found


def _shard(job_id: str, query: Mapping[str, str]) -> Shard:
    numbers = []
    for name, most in (("step", _MOST), ("stream", 99_999), ("number", 99_999), ("size", 0)):
        value = query.get(name, "")
        good = value.isascii() and value.isdecimal() and len(value) < 12
        if not good or int(value) > (most or SHARD_BYTES):
            raise bad_input(f"{name} is {value[:20]!r}", "use the daemon's own spotctl")
        numbers.append(int(value))
    step, stream, number, size = numbers
    digests = query.get("digests", "")
    count = -(-size // CHUNK_BYTES)
    if not _DIGESTS.fullmatch(digests) or digests.count(",") + 1 != count:
        raise bad_input(f"digests must be {count} of {KIND}", "use the daemon's own spotctl")
    key = imports.shard_key(job_id, step, stream, number)
    return Shard(key, size, CHUNK_BYTES, tuple(digests.split(",")), KIND)


def _unknown(backing: ApiContext, job_id: str) -> str:
    """The id, where no job has it. Raises ApiError."""
    if not _ID.fullmatch(job_id):
        raise bad_input(f"{job_id[:80]!r} is no job's id", "POST /v1/imports gives one")
    if backing.store.job_names([job_id]):
        raise conflict(f"there is a job {job_id} already", "POST /v1/imports gives another id")
    return job_id


def _open(backing: ApiContext, url: str) -> ObjectStore:
    try:
        return backing.open_store(url)
    except (StoreConfigError, StoreDeniedError) as error:
        text = f"the daemon cannot open the store {url[:200]!r}: {error}"
        raise bad_input(text, "name one that [stores] in its config.toml has") from None
