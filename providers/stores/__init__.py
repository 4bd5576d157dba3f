"""Object stores by URL: `file:///folder` and `s3://bucket/prefix`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from providers.stores.base import ObjectStore, StoreConfigError

__all__ = ["open_store"]


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """The store at `url`. Opening makes no network call.

    `options` of `s3://`: endpoint, region, access_key_id, secret_access_key, session_token,
    allow_http ("true" or "false"), timeout_s; `file://` has none. Raises StoreConfigError for an
    unknown scheme, a malformed URL, an unknown option or a client library that is not installed.
    """
    options = options or {}
    if not re.match(r"[a-z0-9]+://", url):
        raise StoreConfigError(f"store {url!r} is no URL: write file:///folder or s3://bucket")
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise StoreConfigError(f"store {url!r} has a ? or #: give options apart from the URL")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise StoreConfigError(f"store {url!r} needs an absolute path, as file:///data/spotd")
        if options:
            named = ", ".join(sorted(options))
            raise StoreConfigError(f"a file:// store has no options: leave out {named}")
        from providers.stores.local import LocalStore  # noqa: PLC0415 - only what is used

        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        if not parts.netloc:
            raise StoreConfigError(f"store {url!r} names no bucket: write s3://bucket/prefix")
        from providers.stores.s3 import open_s3  # noqa: PLC0415 - obstore is an extra

        return open_s3(parts.netloc, parts.path.strip("/"), options)
    raise StoreConfigError(
        f"store {url!r} has the unknown scheme {parts.scheme!r}: file:// and s3:// are supported"
    )
