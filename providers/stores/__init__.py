"""Open object stores by URL: a local folder, S3, Google Cloud Storage or Azure Blob."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from providers.cloud_facts import alternatives, load
from providers.clouds import STORE_OF_SCHEME
from providers.stores.base import ObjectStore, StoreConfigError

__all__ = ["credential_provider", "open_store"]


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Open the store at `url`: `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or
    `az://container/prefix`. Makes no network call.

    Options by scheme:

    * `file://`: none.
    * all buckets: endpoint, allow_http ("true" or "false"), timeout_s, credentials_file (temporary
      credentials, read again when they expire), identity (the cloud this machine belongs to; its
      identity is exchanged for store credentials by `providers.federation`).
    * `s3://`: region, access_key_id, secret_access_key, session_token, sign_bodies ("true" or
      "false"); with identity also role and audience.
    * `gs://`: service_account_key (the content of the key file); with identity also
      service_account, pool and audience.
    * `az://`: account (required), account_key, sas_token, client_id (of a managed identity); with
      identity also tenant, application and audience.

    Raises StoreConfigError for an unknown scheme, a malformed URL, an unknown option or a client
    library that is not installed.
    """
    options, known = options or {}, STORE_OF_SCHEME.values()
    if not re.match(r"[a-z0-9]+://", url):
        raise StoreConfigError(
            f"store {url!r} is not a URL: write "
            + alternatives(("file:///folder", *(f"{s.scheme}://{s.container}" for s in known)))
        )
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise StoreConfigError(
            f"store {url!r} has a ? or #: set options separately, not in the URL"
        )
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise StoreConfigError(f"store {url!r} needs an absolute path, as file:///data/spotd")
        if options:
            names = ", ".join(sorted(options))
            raise StoreConfigError(f"a file:// store has no options: leave out {names}")
        from providers.stores.local import LocalStore  # noqa: PLC0415 - load only the store used

        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme not in STORE_OF_SCHEME:
        supported = alternatives(("file://", *(f"{store.scheme}://" for store in known)), "and")
        raise StoreConfigError(
            f"store {url!r} has the unknown scheme {parts.scheme!r}: {supported} are supported"
        )
    if not parts.netloc:
        raise StoreConfigError(
            f"store {url!r} names no bucket: write {parts.scheme}://bucket/prefix"
        )
    # Loaded on use because obstore is an optional dependency.
    open_bucket = load(STORE_OF_SCHEME[parts.scheme].adapter)
    store: ObjectStore = open_bucket(parts.netloc, parts.path.strip("/"), options)
    return store


def credential_provider(
    url: str, options: Mapping[str, str]
) -> Callable[[], dict[str, Any]] | None:
    """A function that exchanges this machine's cloud identity for read-only credentials of the
    store at `url`; None unless the options set `identity`.

    It returns credentials in obstore's format, and raises `providers.federation.ExchangeError`.
    Raises StoreConfigError.
    """
    if not options.get("identity"):
        return None
    module, _, _ = STORE_OF_SCHEME[urlsplit(url).scheme].adapter.partition(":")
    provider: Callable[[], dict[str, Any]] = import_module(module).credential_provider(
        options, read_only=True
    )
    return provider
