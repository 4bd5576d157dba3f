"""Upload the outputs of a job to its store, with a manifest that names and verifies them.

Content that an earlier upload of the same job has stored is not uploaded again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from providers.stores.base import ObjectStore, StoreError, StoreUnavailableError
from spotd.wire import (
    Manifest,
    SavedFile,
    SavedFolder,
    Stream,
    WireError,
    outputs_folder,
    outputs_key,
    parse_manifest,
    sha256,
)
from trainer.directory import archive
from trainer.directory.archive import ChangedError
from trainer.directory.stored_units import Identity, identity_of
from trainer.outputs.files import OutputFile

Result = TypeVar("Result")
PARALLEL_FILES = 4
RETRY_S = 1.0
MAX_PROBLEMS = 3  # named in one message


class CancelledError(Exception):
    """The time for the upload is over."""


@dataclass(frozen=True)
class Upload:
    """The owner of an upload, and its limits.

    `cancelled` is asked before each file. After `patience_s` without an answer of the store the
    upload is given up. `pause` may raise to end it.
    """

    job_id: str
    generation: int
    rank: int
    cancelled: Callable[[], bool]
    patience_s: float
    pause: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000


@dataclass(frozen=True)
class StoredOutputs:
    """The result of an upload. `complete` is False if it was cancelled before its end."""

    manifest: str = ""  # key; "" if nothing was stored
    digest: str = ""  # sha256 hex of the manifest
    files: int = 0
    size: int = 0
    new_size: int = 0  # of `size`, what was uploaded now
    problems: tuple[str, ...] = ()
    complete: bool = True


@dataclass
class _Progress:
    """State that the threads of one upload share."""

    known: dict[Identity, Stream]
    last_answer_s: float
    new_size: int = 0
    problems: list[str] = field(default_factory=list)
    cancelled: bool = False


def upload_outputs(
    open_store: Callable[[], ObjectStore], files: Sequence[OutputFile], upload: Upload
) -> StoredOutputs:
    """Upload the files, then their manifest. Files that cannot be read are left out and named.

    If the upload is cancelled, what has been uploaded is stored with a manifest. Raises StoreError,
    and what `upload.pause` raises.
    """
    if not files:
        return StoredOutputs()
    try:
        return _upload(open_store, files, upload)
    except CancelledError:
        return StoredOutputs(complete=False)


def _upload(
    open_store: Callable[[], ObjectStore], files: Sequence[OutputFile], upload: Upload
) -> StoredOutputs:
    """Raises CancelledError if nothing was stored in time."""
    nonce = secrets.token_hex(8)
    key = outputs_key(upload.job_id, generation=upload.generation, rank=upload.rank, nonce=nonce)
    folder = key.rpartition("/")[0]
    progress = _Progress({}, upload.monotonic())
    store = _retrying(open_store, upload=upload, progress=progress)
    progress.known |= _stored_before(store, upload)

    def store_file(number: int, file: OutputFile) -> Stream | None:
        try:
            return _store_file(
                store, file, upload=upload, progress=progress, folder=folder, number=number
            )
        except CancelledError:
            progress.cancelled = True
        except (OSError, ChangedError) as error:
            progress.problems.append(f"{file.path} is left out: {_reason(error)}")
        return None

    with ThreadPoolExecutor(PARALLEL_FILES, thread_name_prefix="outputs") as pool:
        futures = [pool.submit(store_file, number, file) for number, file in enumerate(files)]
        try:
            streams = [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    stored = [
        (file, stream) for file, stream in zip(files, streams, strict=True) if stream is not None
    ]
    problems, complete = tuple(progress.problems), not progress.cancelled
    if not stored:
        return StoredOutputs(problems=problems, complete=complete)
    manifest = _manifest(stored, upload)
    data = manifest.to_bytes()

    def put_manifest() -> bool:
        store.put(key, data)
        return True

    _retrying(put_manifest, upload=upload, progress=progress)
    return StoredOutputs(
        manifest=key,
        digest=sha256(data),
        files=len(stored),
        size=manifest.size,
        new_size=progress.new_size,
        problems=problems,
        complete=complete,
    )


def _store_file(
    store: ObjectStore,
    file: OutputFile,
    *,
    upload: Upload,
    progress: _Progress,
    folder: str,
    number: int,
) -> Stream:
    """Upload one file unless its content is stored already; return its stream."""
    if upload.cancelled():
        raise CancelledError
    stream = archive.digest_file(file.source, file.size)
    if not stream.size:
        return stream
    known = progress.known.get(identity_of(stream))
    if known is not None:
        return known
    keyed = _retrying(
        lambda: archive.upload_file(store, file.source, stream, folder=folder, number=number),
        upload=upload,
        progress=progress,
    )
    progress.known[identity_of(keyed)] = keyed
    progress.new_size += keyed.size
    return keyed


def _retrying(work: Callable[[], Result], *, upload: Upload, progress: _Progress) -> Result:
    """Call `work` until the store answers. Raises StoreUnavailableError, CancelledError."""
    while (result := _try_once(work, upload=upload, progress=progress)) is None:
        upload.pause(RETRY_S)
    progress.last_answer_s = upload.monotonic()
    return result


def _try_once(work: Callable[[], Result], *, upload: Upload, progress: _Progress) -> Result | None:
    """Return None if the store does not answer, and is to be asked again."""
    try:
        return work()
    except StoreUnavailableError:
        if upload.cancelled():
            raise CancelledError from None
        if upload.monotonic() - progress.last_answer_s > upload.patience_s:
            raise
        return None


def _stored_before(store: ObjectStore, upload: Upload) -> dict[Identity, Stream]:
    """Return the streams of the job's earlier uploads, by their content, as far as they are
    readable."""
    known: dict[Identity, Stream] = {}
    with suppress(StoreError):
        for info in store.list(outputs_folder(upload.job_id)):
            if not info.key.endswith("/MANIFEST.json"):
                continue
            with suppress(WireError):
                for stream in parse_manifest(store.get(info.key)[0]).streams:
                    known[identity_of(stream)] = stream
    return known


def _manifest(stored: Sequence[tuple[OutputFile, Stream]], upload: Upload) -> Manifest:
    saved = SavedFolder(
        newest="",
        number=None,
        files=tuple(
            SavedFile(file.path, file.group, file.modified_ns // 1000, file.mode)
            for file, _ in stored
        ),
    )
    return Manifest(
        job=upload.job_id,
        generation=upload.generation,
        step=0,
        created_at_us=upload.now_us(),
        world_size=1,
        streams=tuple(stream for _, stream in stored),
        state=saved.to_state(),
    )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


def join_problems(problems: Sequence[str]) -> str:
    """Return the first problems as one text, and how many more there are."""
    more = len(problems) - MAX_PROBLEMS
    text = "; ".join(problems[:MAX_PROBLEMS])
    return f"{text}; and {more} more" if more > 0 else text
