"""An object store in a folder. Standard library only, Python >= 3.10 (it runs on the node).

Objects are plain files under the root. Every write is a temporary file, fsync, rename and an fsync
of the folder, so that a reader or a crash sees the old object or the new one and nothing between.
Temporary files and the lock lie in `.store/` under the root, where no key can point.

A version tag is the file's modification time, which every write makes larger than any before it,
and a digest of the content: a version never comes back, even when the same bytes do.
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
    """The store rooted at the absolute folder `root`, which the first write creates.

    `lock_wait_s` bounds the wait for another writer's conditional write (a stopped process may sit
    on the lock); past it, StoreUnavailableError.
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
        self._corner = self._root / ".store"
        self._lock_wait_s = lock_wait_s
        self._clock_ns = clock_ns
        self._sweep()

    def get(self, key: str) -> tuple[bytes, str]:
        """The whole object and its version tag. Raises NotFoundError."""
        with self._errors(key), self._open(key) as file:
            data = file.read()
            return data, _tag(data, os.fstat(file.fileno()).st_mtime_ns)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` (fewer at the end of the object). Raises NotFoundError."""
        with self._errors(key), self._open(key) as file:
            file.seek(start)
            return file.read(length)

    def put(self, key: str, data: Body) -> None:
        """Write under a key that no other writer uses; durable when it returns."""
        with self._errors(key):
            temporary = self._write_temporary(data)
            with _removed_on_error(temporary):
                os.utime(temporary, ns=(self._clock_ns(),) * 2)
                self._move(temporary, key)
            _sync_folder(self._path(key).parent)

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        """Conditional write; the new tag. Raises ConflictError, StoreUnavailableError."""
        with self._errors(key):
            temporary = self._write_temporary(data)
            with _removed_on_error(temporary), self._lock() as lock:
                if self._tag_of(key) != tag:
                    raise ConflictError(f"{key} is not the version that was expected")
                version_ns = max(self._clock_ns(), os.fstat(lock).st_mtime_ns + 1)
                os.utime(lock, ns=(version_ns, version_ns))
                os.utime(temporary, ns=(version_ns, version_ns))
                kept_ns = temporary.stat().st_mtime_ns  # file systems keep it more or less exactly
                self._move(temporary, key)
            _sync_folder(self._path(key).parent)
            return _tag(data, kept_ns)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in key order."""
        start = prefix.rpartition("/")[0]
        if start:
            check_key(start)
        with self._errors(prefix):
            yield from self._walk(start, prefix)

    def delete(self, key: str) -> None:
        """Remove, with folders that become empty; a missing key is success."""
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
            raise StoreDeniedError(f"{key} leads out of {self.url} through a link: remove the link")
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
        folder = self._corner / "tmp"
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
        for _ in range(100):  # a delete next door may take the empty folder away again
            _make_folder(path.parent)
            try:
                temporary.replace(path)
            except FileNotFoundError:
                if not temporary.exists():
                    raise StoreUnavailableError(f"{key}: this write took too long") from None
            else:
                return
        raise StoreUnavailableError(f"{key}: its folder keeps vanishing")

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        """The store's one lock, held by the open file and so freed by any death."""
        _make_folder(self._corner)
        lock = os.open(self._corner / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            give_up = time.monotonic() + self._lock_wait_s
            pause_s = 0.0005
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up:
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
            with os.scandir(self._root / folder) as found:
                entries = [(e, e.is_dir(follow_symlinks=False)) for e in found]
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
                    yield ObjectInfo(key, entry.stat(follow_symlinks=False).st_size)

    def _sweep(self) -> None:
        """Remove what killed writers left behind, long after any living one would be done."""
        with self._errors(".store"), contextlib.suppress(FileNotFoundError):
            oldest_ns = self._clock_ns() - int(STALE_TEMPORARY_S * 1e9)
            for path in (self._corner / "tmp").iterdir():
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
        text = f"{key} in {self.url}: {error.strerror or error}"
        if error.errno in _DENIED:
            return StoreDeniedError(f"{text} (check the owner and the mode of the folder)")
        if error.errno == errno.ENAMETOOLONG:
            return StoreConfigError(text)
        return StoreUnavailableError(text)


def _tag(data: bytes, version_ns: int) -> str:
    return f"{version_ns:x}-{hashlib.sha256(data).hexdigest()[:32]}"


def _open_plain(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _make_folder(folder: Path) -> None:
    """Create with parents, each entry made durable in the folder above."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    # The folder may have been removed again together with its last object: nothing to keep then.
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
