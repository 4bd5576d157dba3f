"""An object store in an S3 bucket, through obstore.

Conditional writes are single PUTs with `If-None-Match: *` or `If-Match`, sent once: the client
library must not repeat them behind our back, because a repeated one that had already succeeded
reports a conflict. S3 tags are digests of the content, so a conditional body has to carry a nonce.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from providers.stores.base import (
    ConflictError,
    NotFoundError,
    ObjectInfo,
    StoreConfigError,
    StoreDeniedError,
    StoreUnavailableError,
    check_key,
)

PART_BYTES = 16 << 20
PARTS_IN_FLIGHT = 8
_CREDENTIALS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
_STATUS = re.compile(r"status code: (\d{3})")
_OPTIONS = frozenset({*_CREDENTIALS, "allow_http", "timeout_s"})


def open_s3(bucket: str, prefix: str, options: Mapping[str, str]) -> S3Store:
    """The store under `prefix` of `bucket`; options as `open_store` lists them."""
    try:
        from obstore.store import S3Store as Client  # noqa: PLC0415 - an extra
    except ImportError:
        raise StoreConfigError(
            "s3:// needs the package obstore: install spotd with the extra torch, aws, gcp or azure"
        ) from None
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise StoreConfigError(f"unknown store options {unknown}: s3:// has {sorted(_OPTIONS)}")
    if prefix:
        check_key(prefix)
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

    credentials: Any = {name: options[name] for name in _CREDENTIALS if options.get(name)}

    def client(max_retries: int) -> Any:
        return Client(
            bucket,
            prefix=prefix or None,
            client_options={
                "allow_http": allow_http == "true",
                "connect_timeout": timedelta(seconds=min(5.0, timeout_s)),
                "timeout": timedelta(seconds=timeout_s),
            },
            retry_config={
                "max_retries": max_retries,
                "retry_timeout": timedelta(seconds=2 * timeout_s),
            },
            **credentials,
        )

    try:
        return S3Store(f"s3://{bucket}/{prefix}".rstrip("/"), client(4), client(0))
    except Exception as error:
        raise StoreConfigError(f"s3://{bucket}: {error}") from error


class S3Store:
    """The bucket behind two clients: `repeating` for what may be repeated, `once` for `put_if`."""

    def __init__(self, url: str, repeating: Any, once: Any) -> None:
        import obstore  # noqa: PLC0415 - an extra

        self.url = url
        self._s3 = obstore
        self._repeating = repeating
        self._once = once

    def get(self, key: str) -> tuple[bytes, str]:
        """The whole object and its version tag. Raises NotFoundError."""
        check_key(key)
        with self._errors(key):
            found = self._s3.get(self._repeating, key)
            return found.bytes().to_bytes(), str(found.meta["e_tag"])

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` (fewer at the end of the object). Raises NotFoundError."""
        check_key(key)
        with self._errors(key):
            size = self._s3.head(self._repeating, key)["size"]
            end = min(start + length, size)
            if start >= end:
                return b""
            return bytes(self._s3.get_range(self._repeating, key, start=start, end=end))

    def put(self, key: str, data: bytes | memoryview | Path) -> None:
        """Write under a key that no other writer uses; durable when it returns.

        More than 16 MiB go up in parts, eight in flight, from memory.
        """
        check_key(key)
        with contextlib.ExitStack() as stack:
            if isinstance(data, Path):
                file = stack.enter_context(data.open("rb"))
                size = data.stat().st_size
                data = b""
                if size:  # an empty file cannot be mapped
                    mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
                    data = stack.enter_context(memoryview(stack.enter_context(mapped)))
            with self._errors(key, writing=True):
                self._s3.put(
                    self._repeating,
                    key,
                    data,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_IN_FLIGHT,
                )

    def put_if(self, key: str, data: bytes, tag: str | None) -> str:
        """Conditional write; the new tag. Raises ConflictError, StoreUnavailableError."""
        check_key(key)
        errors = self._s3.exceptions
        mode: Any = "create" if tag is None else {"e_tag": tag}
        with self._errors(key, writing=True):
            try:
                put = self._s3.put(self._once, key, data, mode=mode, use_multipart=False)
                return str(put["e_tag"])
            except errors.PreconditionError as error:
                raise ConflictError(f"{key}: {error}") from error
            except FileNotFoundError as error:
                if tag is None:
                    raise
                raise ConflictError(f"{key}: {error}") from error
            except errors.AlreadyExistsError as error:
                # S3 says 409, which the client reports like this, when two conditional writes
                # meet: then nothing is decided yet, and the caller tries again.
                if tag is not None or not self._exists(key):
                    raise StoreUnavailableError(f"{key}: {error}") from error
                raise ConflictError(f"{key} exists already") from error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in key order."""
        folder = prefix.rpartition("/")[0]  # the client lists whole folders only
        if folder:
            check_key(folder)
        with self._errors(prefix, writing=True):
            for page in self._s3.list(self._repeating, folder or None, chunk_size=1000):
                for found in page:
                    if found["path"].startswith(prefix):
                        yield ObjectInfo(found["path"], found["size"])

    def delete(self, key: str) -> None:
        """Remove; a missing key is success."""
        check_key(key)
        with self._errors(key, writing=True), contextlib.suppress(FileNotFoundError):
            self._s3.delete(self._repeating, key)

    def _exists(self, key: str) -> bool:
        try:
            self._s3.head(self._repeating, key)
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def _errors(self, key: str, *, writing: bool = False) -> Iterator[None]:
        text = f"{key} in {self.url}"
        try:
            yield
        except FileNotFoundError as error:
            if writing or "<Code>NoSuchBucket<" in str(error):
                raise StoreDeniedError(f"{text}: no such bucket: create it") from error
            raise NotFoundError(f"no object {text}") from error
        except (self._s3.exceptions.BaseError, OSError) as error:
            said = str(error).partition("\n")[0]  # the rest is the client's inner life
            # Lists and uploads in parts report a refusal as a generic error with the status in it.
            status = _STATUS.search(said)
            if isinstance(error, self._refusals()) or (status and status[1] in {"401", "403"}):
                raise StoreDeniedError(f"{text}: {said} (check the keys and the policy)") from error
            if status and status[1] == "404":
                raise StoreDeniedError(f"{text}: no such bucket: create it") from error
            raise StoreUnavailableError(f"{text}: {said}") from error

    def _refusals(self) -> tuple[type[Exception], ...]:
        errors = self._s3.exceptions
        return (errors.PermissionDeniedError, errors.UnauthenticatedError)
