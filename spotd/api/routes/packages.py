"""Archives of workdirs and file mounts, stored in the deployment's store by their digest."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from providers.stores.base import NotFoundError, ObjectStore
from spotd.api.request.context import ApiContext
from spotd.api.request.request import ApiError, bad_input

MAX_PACKAGE_BYTES = 1 << 30
_DIGEST = re.compile(r"[0-9a-f]{64}")


def package_key(digest: str) -> str:
    """Return the key of a package in the deployment's store."""
    return f"packages/{digest}"


def check_digest(digest: str) -> None:
    """Raise ApiError (bad input) unless `digest` is a sha256 in lower-case hex."""
    if not _DIGEST.fullmatch(digest):
        raise bad_input(f"{digest[:80]!r} is not a sha256 digest", "use the daemon's own spotctl")


def has_package(objects: ObjectStore, digest: str) -> bool:
    """Whether the package was uploaded before."""
    try:
        objects.get_range(package_key(digest), 0, 1)
    except NotFoundError:
        return False
    return True


async def receive_package(
    context: ApiContext, digest: str, length: int | None, chunks: AsyncIterator[bytes]
) -> bool:
    """Store an upload once its bytes have the digest they claim; True when it is new.

    Raises ApiError: too large, or other bytes than announced.
    """
    check_digest(digest)
    if length is not None and length > MAX_PACKAGE_BYTES:
        raise _too_large(length)
    if await run_in_threadpool(has_package, context.storage.objects, digest):
        return False
    context.storage.spool_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=context.storage.spool_dir, prefix="upload-") as spool:
        hasher, size = hashlib.sha256(), 0
        async for chunk in chunks:
            size += len(chunk)
            if size > MAX_PACKAGE_BYTES:
                raise _too_large(size)
            hasher.update(chunk)
            await run_in_threadpool(spool.write, chunk)
        if hasher.hexdigest() != digest:
            raise bad_input(
                f"the {size} bytes received have another digest than {digest[:12]}",
                "upload it again; the connection may have been cut",
            )
        spool.flush()
        await run_in_threadpool(context.storage.objects.put, package_key(digest), Path(spool.name))
    return True


def _too_large(size: int) -> ApiError:
    limit_mib = MAX_PACKAGE_BYTES >> 20
    return ApiError(
        413,
        "too_large",
        f"a package may have up to {limit_mib} MiB, but this one has at least {size >> 20} MiB",
        "list what the job does not need in .skyignore, and keep data in a bucket",
    )
