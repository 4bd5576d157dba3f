"""An object store in a bucket of a cloud, through obstore: what S3, Google Cloud Storage and Azure
Blob have in common. How each is opened is in its own module.

Conditional writes are single PUTs, sent once: the client library must not repeat them behind our
back, because a repeated one that had already succeeded reports a conflict.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from providers.federation import DOORS, Endpoints
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

PART_BYTES = 16 << 20
PARTS_IN_FLIGHT = 8
BULK_BYTES = 1 << 20  # from here on what a body takes to sign is felt
COMMON = frozenset({"endpoint", "allow_http", "timeout_s", "credentials_file"})  # options of all
_PROVIDER = re.compile(r"External \w+ credential provider")  # what the client calls our own code
_STATUS = re.compile(r"status code: (\d{3})")


@dataclass(frozen=True)
class BackendTerms:
    """What a cloud calls things. `tag` is which of an object's marks says its version, "e_tag" or
    "version"; `no_bucket` is in the answer when there is no such bucket, one of `over` when it
    refuses credentials because their time is over."""

    tag: str
    no_bucket: str
    over: tuple[str, ...]


@dataclass(frozen=True)
class ClientOptions:
    """How the two clients of a store speak."""

    allow_http: bool
    timeout_s: float

    def options(self, max_retries: int) -> dict[str, Any]:
        return {
            "client_options": {
                "allow_http": self.allow_http,
                "connect_timeout": timedelta(seconds=min(5.0, self.timeout_s)),
                "timeout": timedelta(seconds=self.timeout_s),
            },
            "retry_config": {
                "max_retries": max_retries,
                "retry_timeout": timedelta(seconds=2 * self.timeout_s),
            },
        }


def client_of(scheme: str, name: str) -> Any:
    """obstore's class of that name. Raises StoreConfigError where obstore is not installed."""
    try:
        return getattr(import_module("obstore.store"), name)
    except ImportError:
        raise StoreConfigError(
            f"{scheme}:// needs the package obstore: install spotd with the extra torch, aws, gcp "
            "or azure"
        ) from None


def read_line(scheme: str, options: Mapping[str, str], known: Iterable[str]) -> ClientOptions:
    """Raises StoreConfigError for an option that is not `known`, or whose value cannot be."""
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise StoreConfigError(f"unknown store options {unknown}: {scheme}:// has {sorted(known)}")
    allow_http = options.get("allow_http", "false")
    if allow_http not in {"true", "false"}:
        raise StoreConfigError(f"store option allow_http is {allow_http!r}: write true or false")
    endpoint = options.get("endpoint", "")
    if endpoint.startswith("http://") and allow_http == "false":
        raise StoreConfigError(f"{endpoint} is not https: set allow_http to true if you mean it")
    try:
        timeout_s = float(options.get("timeout_s", "30"))
    except ValueError:
        raise StoreConfigError("store option timeout_s is no number of seconds") from None
    return ClientOptions(allow_http == "true", timeout_s)


def read_proof(
    options: Mapping[str, str], clouds: Sequence[str], needed: Sequence[str], allow_http: bool
) -> tuple[str, Endpoints]:
    """Of a store's options: whose machine this is, and where to ask. Raises StoreConfigError, where
    it is none of `clouds` or one of the options `needed` is not given."""
    cloud = options.get("identity", "")
    if cloud not in clouds or not all(options.get(name) for name in needed):
        raise StoreConfigError(
            f"store option identity is one of {', '.join(clouds)}, with {', '.join(needed)}"
        )
    doors = Endpoints(**{name: options[name] for name in DOORS if options.get(name)})
    for url in (doors.sts, doors.tokens, doors.iam):
        if url and not url.startswith("https://") and not allow_http:
            raise StoreConfigError(f"{url} is not https: set allow_http to true if you mean it")
    return cloud, doors


def open_bucket(
    url: str,
    prefix: str,
    make: Callable[[int], Any],
    words: BackendTerms,
    remove: Callable[[str], None] | None = None,
    make_bulk: Callable[[int], Any] | None = None,
) -> BucketStore:
    """`make(max_retries)` makes a client, `make_bulk` one for large bodies, where that is another;
    `remove` deletes where the client's own way does not do. Raises StoreConfigError for what a
    client cannot be made of."""
    if prefix:
        check_key(prefix)
    try:
        repeating = make(4)
        bulk = make_bulk(4) if make_bulk else repeating
        return BucketStore(url, repeating, make(0), bulk, words, remove)
    except Exception as error:
        raise StoreConfigError(f"{url}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """The rest is the client's inner life."""
    return str(error).partition("\n")[0]


class _Pieces:
    """As an iterator, `data`; of its error the client tells only that there was one."""

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._data)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


class BucketStore:
    """The bucket behind three clients: `repeating` for what may be repeated, `once` for `put_if`,
    `bulk` for large bodies, which may be repeated too."""

    def __init__(
        self,
        url: str,
        repeating: Any,
        once: Any,
        bulk: Any,
        words: BackendTerms,
        remove: Callable[[str], None] | None = None,
    ) -> None:
        import obstore  # noqa: PLC0415 - an extra

        self.url = url
        self._obstore = obstore
        self._repeating = repeating
        self._once = once
        self._bulk = bulk
        self._words = words
        self._remove = remove or self._remove_plainly

    def get(self, key: str) -> tuple[bytes, str]:
        """The whole object and its version tag. Raises NotFoundError."""
        check_key(key)
        with self._errors(key):
            found = self._obstore.get(self._repeating, key)
            marks: Any = found.meta
            return found.bytes().to_bytes(), str(marks[self._words.tag])

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` (fewer at the end of the object). Raises NotFoundError."""
        check_key(key)
        with self._errors(key):
            size = self._obstore.head(self._repeating, key)["size"]
            end = min(start + length, size)
            if start >= end:
                return b""
            return bytes(self._obstore.get_range(self._repeating, key, start=start, end=end))

    def put(self, key: str, data: Body) -> None:
        """Write under a key that no other writer uses; durable when it returns.

        More than 16 MiB go up in parts, eight in flight, from memory.
        """
        check_key(key)
        if isinstance(data, Iterator):
            self._put_pieces(key, _Pieces(data))
            return
        with contextlib.ExitStack() as stack:
            if isinstance(data, Path):
                file = stack.enter_context(data.open("rb"))
                size = data.stat().st_size
                data = b""
                if size:  # an empty file cannot be mapped
                    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
                    data = stack.enter_context(memoryview(stack.enter_context(mapped)))
            with self._errors(key, writing=True):
                self._obstore.put(
                    self._repeating if len(data) < BULK_BYTES else self._bulk,
                    key,
                    data,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_IN_FLIGHT,
                )

    def _put_pieces(self, key: str, pieces: _Pieces) -> None:
        """In parts; the client drops them all where `pieces` end with an error."""
        try:
            with self._errors(key, writing=True):
                self._obstore.put(
                    self._bulk,
                    key,
                    pieces,
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_IN_FLIGHT,
                )
        except StoreError:
            if pieces.error is not None:
                raise pieces.error from None
            raise

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        """Conditional write; the new tag. Raises ConflictError, StoreUnavailableError."""
        check_key(key)
        errors = self._obstore.exceptions
        mode: Any = "create" if tag is None else {self._words.tag: tag}
        with self._errors(key, writing=True):
            try:
                put: Any = self._obstore.put(self._once, key, data, mode=mode, use_multipart=False)
                return str(put[self._words.tag])
            except errors.PreconditionError as error:
                raise ConflictError(f"{key}: {_first_line(error)}") from error
            except FileNotFoundError as error:
                if tag is None:
                    raise
                raise ConflictError(f"{key}: {_first_line(error)}") from error
            except errors.AlreadyExistsError as error:
                # What exists; and S3's 409 when two conditional writes meet: then nothing is
                # decided yet, and the caller tries again.
                if tag is not None or not self._exists(key):
                    raise StoreUnavailableError(f"{key}: {error}") from error
                raise ConflictError(f"{key} exists already") from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in key order."""
        folder = prefix.rpartition("/")[0]  # the client lists whole folders only
        if folder:
            check_key(folder)
        with self._errors(prefix, writing=True):
            for page in self._obstore.list(self._repeating, folder or None, chunk_size=1000):
                for found in page:
                    if found["path"].startswith(prefix):
                        yield ObjectInfo(found["path"], found["size"], found.get("e_tag") or "")

    def delete(self, key: str) -> None:
        """Remove; a missing key is success."""
        check_key(key)
        with self._errors(key, writing=True), contextlib.suppress(FileNotFoundError):
            self._remove(key)

    def _remove_plainly(self, key: str) -> None:
        self._obstore.delete(self._repeating, key)

    def _exists(self, key: str) -> bool:
        try:
            self._obstore.head(self._repeating, key)
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def _errors(self, key: str, *, writing: bool = False) -> Iterator[None]:
        text = f"{key} in {self.url}"
        try:
            yield
        except FileNotFoundError as error:
            if writing or self._words.no_bucket in str(error):
                raise StoreDeniedError(f"{text}: no such bucket: create it") from error
            raise NotFoundError(f"no object {text}") from error
        except (self._obstore.exceptions.BaseError, OSError) as error:
            said = _first_line(error)
            # Where credentials come from is away, or what was lent is over: there may be more.
            if _PROVIDER.search(said) or any(word in str(error) for word in self._words.over):
                raise StoreUnavailableError(f"{text}: {said}") from error
            # Lists and uploads in parts report a refusal as a generic error with the status in it.
            status = _STATUS.search(said)
            if isinstance(error, self._refusals()) or (status and status[1] in {"401", "403"}):
                raise StoreDeniedError(f"{text}: {said} (check the keys and the policy)") from error
            if status and status[1] == "404":
                raise StoreDeniedError(f"{text}: no such bucket: create it") from error
            raise StoreUnavailableError(f"{text}: {said}") from error

    def _refusals(self) -> tuple[type[Exception], ...]:
        errors = self._obstore.exceptions
        return (errors.PermissionDeniedError, errors.UnauthenticatedError)
