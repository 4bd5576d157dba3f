"""The common part of the S3, Google Cloud Storage and Azure Blob stores, built on obstore.

Conditional writes are single PUTs that the client library must not retry: a retry of a write that
had already succeeded would report a conflict.
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

from providers.clouds import CLOUDS
from providers.federation import ENDPOINT_NAMES, Endpoints
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
BULK_BYTES = 1 << 20  # from this size on, signing the body costs noticeable CPU time
COMMON = frozenset({"endpoint", "allow_http", "timeout_s", "credentials_file"})
# obstore's message when a credential provider written in Python fails.
_PROVIDER_ERROR = re.compile(r"External \w+ credential provider")
_STATUS = re.compile(r"status code: (\d{3})")


@dataclass(frozen=True)
class BackendTerms:
    """How one cloud reports versions and errors.

    `version_field` is the metadata field that holds an object's version, "e_tag" or "version".
    `no_bucket` appears in the error when the bucket does not exist; one of `expired` appears when
    credentials have expired.
    """

    version_field: str
    no_bucket: str
    expired: tuple[str, ...]


@dataclass(frozen=True)
class ClientOptions:
    """Connection options of a store's obstore clients."""

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


def load_client_class(scheme: str, name: str) -> Any:
    """Import the obstore class `name`. Raises StoreConfigError if obstore is not installed."""
    try:
        return getattr(import_module("obstore.store"), name)
    except ImportError:
        raise StoreConfigError(
            f"{scheme}:// needs the package obstore: pip install 'obstore>=0.12,<0.13'"
        ) from None


def parse_client_options(
    scheme: str, options: Mapping[str, str], known: Iterable[str]
) -> ClientOptions:
    """Parse the connection options. Raises StoreConfigError for an option that is not `known` and
    for an invalid value."""
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
        raise StoreConfigError("store option timeout_s is not a number of seconds") from None
    return ClientOptions(allow_http == "true", timeout_s)


def parse_identity(
    options: Mapping[str, str], scheme: str, needed: Sequence[str], allow_http: bool
) -> tuple[str, Endpoints]:
    """Parse the identity options: the cloud of this machine and the token endpoints.

    Raises StoreConfigError if the cloud is the store's own or has no machine identities, an option
    in `needed` is missing, or an endpoint is plain HTTP without `allow_http`.
    """
    cloud = options.get("identity", "")
    clouds = [c.name for c in CLOUDS.values() if c.identity and c.scheme != scheme]
    if cloud not in clouds or not all(options.get(name) for name in needed):
        raise StoreConfigError(
            f"store option identity is one of {', '.join(clouds)}, with {', '.join(needed)}"
        )
    endpoints = Endpoints(**{name: options[name] for name in ENDPOINT_NAMES if options.get(name)})
    for url in (endpoints.sts, endpoints.tokens, endpoints.iam):
        if url and not url.startswith("https://") and not allow_http:
            raise StoreConfigError(f"{url} is not https: set allow_http to true if you mean it")
    return cloud, endpoints


def open_bucket(
    url: str,
    prefix: str,
    make_client: Callable[[int], Any],
    terms: BackendTerms,
    delete_object: Callable[[str], None] | None = None,
    make_bulk_client: Callable[[int], Any] | None = None,
) -> BucketStore:
    """Build the store from `make_client(max_retries)`.

    `make_bulk_client` makes the client for large bodies if that needs another one; `delete_object`
    replaces obstore's own delete. Raises StoreConfigError if obstore rejects the options.
    """
    if prefix:
        check_key(prefix)
    try:
        retrying = make_client(4)
        bulk = make_bulk_client(4) if make_bulk_client else retrying
        return BucketStore(url, retrying, make_client(0), bulk, terms, delete_object)
    except Exception as error:
        raise StoreConfigError(f"{url}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """obstore's message; the lines after the first are internal details."""
    return str(error).partition("\n")[0]


class _Chunks:
    """Iterate over `data` and remember its exception: obstore replaces it with one of its own."""

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
    """A bucket, accessed through three obstore clients: `retrying` for idempotent requests, `once`
    (no retries) for `put_if`, and `bulk` (retrying) for large bodies."""

    def __init__(
        self,
        url: str,
        retrying: Any,
        once: Any,
        bulk: Any,
        terms: BackendTerms,
        delete_object: Callable[[str], None] | None = None,
    ) -> None:
        import obstore  # noqa: PLC0415 - an extra

        self.url = url
        self._obstore = obstore
        self._retrying = retrying
        self._once = once
        self._bulk = bulk
        self._terms = terms
        self._delete_object = delete_object or self._obstore_delete

    def get(self, key: str) -> tuple[bytes, str]:
        check_key(key)
        with self._errors(key):
            result = self._obstore.get(self._retrying, key)
            meta: Any = result.meta
            return result.bytes().to_bytes(), str(meta[self._terms.version_field])

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        with self._errors(key):
            size = self._obstore.head(self._retrying, key)["size"]
            end = min(start + length, size)
            if start >= end:
                return b""
            return bytes(self._obstore.get_range(self._retrying, key, start=start, end=end))

    def put(self, key: str, data: Body) -> None:
        """Write under a key that no other writer uses; durable on return.

        Bodies over 16 MiB are uploaded in parts, eight at a time.
        """
        check_key(key)
        if isinstance(data, Iterator):
            self._put_chunks(key, _Chunks(data))
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
                    self._retrying if len(data) < BULK_BYTES else self._bulk,
                    key,
                    data,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_IN_FLIGHT,
                )

    def _put_chunks(self, key: str, chunks: _Chunks) -> None:
        """Upload in parts; obstore discards them all if `chunks` raises."""
        try:
            with self._errors(key, writing=True):
                self._obstore.put(
                    self._bulk,
                    key,
                    chunks,
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_IN_FLIGHT,
                )
        except StoreError:
            if chunks.error is not None:
                raise chunks.error from None
            raise

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        check_key(key)
        errors = self._obstore.exceptions
        mode: Any = "create" if tag is None else {self._terms.version_field: tag}
        with self._errors(key, writing=True):
            try:
                put: Any = self._obstore.put(self._once, key, data, mode=mode, use_multipart=False)
                return str(put[self._terms.version_field])
            except errors.PreconditionError as error:
                raise ConflictError(f"{key}: {_first_line(error)}") from error
            except FileNotFoundError as error:
                if tag is None:
                    raise
                raise ConflictError(f"{key}: {_first_line(error)}") from error
            except errors.AlreadyExistsError as error:
                # The object exists, or this is S3's 409 for concurrent conditional writes: then
                # nothing is decided yet and the caller has to retry.
                if tag is not None or not self._exists(key):
                    raise StoreUnavailableError(f"{key}: {error}") from error
                raise ConflictError(f"{key} exists already") from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = prefix.rpartition("/")[0]  # the client lists whole folders only
        if folder:
            check_key(folder)
        with self._errors(prefix, writing=True):
            for page in self._obstore.list(self._retrying, folder or None, chunk_size=1000):
                for meta in page:
                    if meta["path"].startswith(prefix):
                        yield ObjectInfo(
                            key=meta["path"],
                            size=meta["size"],
                            tag=meta.get("e_tag") or "",
                            modified_us=int(meta["last_modified"].timestamp() * 1_000_000),
                        )

    def delete(self, key: str) -> None:
        check_key(key)
        with self._errors(key, writing=True), contextlib.suppress(FileNotFoundError):
            self._delete_object(key)

    def _obstore_delete(self, key: str) -> None:
        self._obstore.delete(self._retrying, key)

    def _exists(self, key: str) -> bool:
        try:
            self._obstore.head(self._retrying, key)
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def _errors(self, key: str, *, writing: bool = False) -> Iterator[None]:
        target = f"{key} in {self.url}"
        try:
            yield
        except FileNotFoundError as error:
            if writing or self._terms.no_bucket in str(error):
                raise StoreDeniedError(f"{target}: no such bucket: create it") from error
            raise NotFoundError(f"no object {target}") from error
        except (self._obstore.exceptions.BaseError, OSError) as error:
            message = _first_line(error)
            # The credential provider failed or the credentials expired: a retry may get new ones.
            expired = any(marker in str(error) for marker in self._terms.expired)
            if _PROVIDER_ERROR.search(message) or expired:
                raise StoreUnavailableError(f"{target}: {message}") from error
            # Lists and multipart uploads report a refusal as a generic error with a status in it.
            status = _STATUS.search(message)
            if isinstance(error, self._denied_errors()) or (status and status[1] in {"401", "403"}):
                raise StoreDeniedError(
                    f"{target}: {message} (check the keys and the policy)"
                ) from error
            if status and status[1] == "404":
                raise StoreDeniedError(f"{target}: no such bucket: create it") from error
            raise StoreUnavailableError(f"{target}: {message}") from error

    def _denied_errors(self) -> tuple[type[Exception], ...]:
        errors = self._obstore.exceptions
        return (errors.PermissionDeniedError, errors.UnauthenticatedError)
