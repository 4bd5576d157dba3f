"""An object store in a local folder. Standard library only, Python >= 3.10 (it runs on the node).

Objects are plain files under the root. Each write goes to a temporary file, then fsync, rename, and
fsync of the folder: readers and crashes see the old object or the new one, nothing in between.
Temporary files and the lock are in `.store/` under the root, which no key can name.

A version tag is the file's modification time, which every write increases, plus a digest of the
content. A tag is therefore never reused, even if the same bytes are written again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from providers.stores.base import (
    Body,
    ConflictError,
    NotFoundError,
    ObjectInfo,
    StoreConfigError,
    StoreDeniedError,
    StoreError,
    StoreUnavailableError,
    check_key,
)

STALE_TEMPORARY_S = 3600.0
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


class LocalStore:
    """An object store in the absolute folder `root`, created by the first write.

    `lock_wait_s` limits the wait for another writer's lock, which a stopped process may hold
    forever; after that, writes raise StoreUnavailableError.
    """

    def __init__(
        self,
        root: Path,
        *,
        lock_wait_s: float = 10.0,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.url = root.absolute().as_uri()
        self._root = Path(os.path.realpath(root))
        self._internal_folder = self._root / ".store"
        self._lock_wait_s = lock_wait_s
        self._clock_ns = clock_ns
        self._remove_stale_temporaries()

    def get(self, key: str) -> tuple[bytes, str]:
        with self._errors(key), self._open(key) as file:
            data = file.read()
            return data, _tag(data, os.fstat(file.fileno()).st_mtime_ns)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._errors(key), self._open(key) as file:
            file.seek(start)
            return file.read(length)

    def put(self, key: str, data: Body) -> None:
        with self._errors(key):
            temporary = self._write_temporary(data)
            with _removed_on_error(temporary):
                os.utime(temporary, ns=(self._clock_ns(),) * 2)
                self._move(temporary, key)
            _sync_folder(self._path(key).parent)

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        with self._errors(key):
            temporary = self._write_temporary(data)
            with _removed_on_error(temporary), self._lock() as lock:
                if self._tag_of(key) != tag:
                    raise ConflictError(f"{key} has another version than expected")
                version_ns = max(self._clock_ns(), os.fstat(lock).st_mtime_ns + 1)
                os.utime(lock, ns=(version_ns, version_ns))
                os.utime(temporary, ns=(version_ns, version_ns))
                stored_ns = temporary.stat().st_mtime_ns  # as rounded by the file system
                self._move(temporary, key)
            _sync_folder(self._path(key).parent)
            return _tag(data, stored_ns)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        start = prefix.rpartition("/")[0]
        if start:
            check_key(start)
        with self._errors(prefix):
            yield from self._walk(start, prefix)

    def delete(self, key: str) -> None:
        """Delete the object and any folders that become empty."""
        with self._errors(key), self._lock():
            path = self._path(key)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
            for folder in path.parents:
                if folder == self._root or not _remove_empty(folder):
                    break

    def _path(self, key: str) -> Path:
        path = self._root / check_key(key)
        folder = os.path.realpath(path.parent)
        if folder != str(path.parent):
            raise StoreDeniedError(
                f"{key} is outside {self.url} because of a symbolic link: remove the link"
            )
        return path

    def _open(self, key: str) -> FileIO:
        try:
            return open(self._path(key), "rb", buffering=0, opener=_open_plain)
        except OSError as error:
            if error.errno in _MISSING:
                raise NotFoundError(f"no object {key} in {self.url}") from None
            raise

    def _tag_of(self, key: str) -> str | None:
        try:
            with self._open(key) as file:
                return _tag(file.read(), os.fstat(file.fileno()).st_mtime_ns)
        except NotFoundError:
            return None

    def _write_temporary(self, data: Body) -> Path:
        folder = self._internal_folder / "tmp"
        _make_folder(folder)
        path = folder / secrets.token_hex(16)
        with _removed_on_error(path), path.open("xb", buffering=0) as file:
            if isinstance(data, Path):
                with data.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                for piece in data if isinstance(data, Iterator) else (data,):
                    view = memoryview(piece).cast("B")
                    while view:
                        view = view[file.write(view) :]
            os.fsync(file.fileno())
        return path

    def _move(self, temporary: Path, key: str) -> None:
        path = self._path(key)
        for _ in range(100):  # a concurrent delete may remove the empty folder again
            _make_folder(path.parent)
            try:
                temporary.replace(path)
            except FileNotFoundError:
                if not temporary.exists():
                    raise StoreUnavailableError(
                        f"{key}: the write took too long, and its temporary file was deleted"
                    ) from None
            else:
                return
        raise StoreUnavailableError(f"{key}: another process keeps deleting its folder")

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        """Hold the store's lock. It belongs to the open file, so a dying process releases it."""
        _make_folder(self._internal_folder)
        lock = os.open(self._internal_folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            deadline_s = time.monotonic() + self._lock_wait_s
            pause_s = 0.0005
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        raise StoreUnavailableError(
                            f"another writer holds the lock of {self.url} for too long: "
                            "look for a stopped process"
                        ) from None
                time.sleep(pause_s)
                pause_s = min(0.02, pause_s * 1.5)
            yield lock
        finally:
            os.close(lock)

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        base = f"{folder}/" if folder else ""
        try:
            with os.scandir(self._root / folder) as scan:
                entries = [(e, e.is_dir(follow_symlinks=False)) for e in scan]
        except (FileNotFoundError, NotADirectoryError):
            return
        # "a-b" comes before "a/b" in key order, though "a" comes before "a-b".
        for entry, is_folder in sorted(entries, key=lambda e: e[0].name + "/" * e[1]):
            key = base + entry.name
            if is_folder:
                inside = key + "/"
                if key != ".store" and (inside.startswith(prefix) or prefix.startswith(inside)):
                    yield from self._walk(key, prefix)
            elif key.startswith(prefix) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    modified_us = status.st_mtime_ns // 1000
                    yield ObjectInfo(key, status.st_size, modified_us=modified_us)

    def _remove_stale_temporaries(self) -> None:
        """Delete temporary files of killed writers, far older than any running write."""
        with self._errors(".store"), contextlib.suppress(FileNotFoundError):
            oldest_ns = self._clock_ns() - int(STALE_TEMPORARY_S * 1e9)
            for path in (self._internal_folder / "tmp").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime_ns < oldest_ns:
                        path.unlink()

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._translate(key, error) from error

    def _translate(self, key: str, error: OSError) -> StoreError:
        message = f"{key} in {self.url}: {error.strerror or error}"
        if error.errno in _DENIED:
            return StoreDeniedError(f"{message} (check the owner and the mode of the folder)")
        if error.errno == errno.ENAMETOOLONG:
            return StoreConfigError(message)
        return StoreUnavailableError(message)


def _tag(data: bytes, version_ns: int) -> str:
    return f"{version_ns:x}-{hashlib.sha256(data).hexdigest()[:32]}"


def _open_plain(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _make_folder(folder: Path) -> None:
    """Create with parents, syncing each parent so that the new entry is durable."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    # A concurrent delete may have removed the folder with its last object; nothing to sync then.
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY}:
            return error.errno == errno.ENOENT
        raise
    return True


@contextlib.contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        raise
