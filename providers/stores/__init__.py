"""Object stores by URL: a folder, and buckets of S3, Google Cloud Storage and Azure Blob."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from providers.stores.base import ObjectStore, StoreConfigError

__all__ = ["open_store", "proof_of"]

# scheme -> module:function, imported when used: obstore is an extra.
_BUCKETS = {
    "s3": "providers.stores.s3:open_s3",
    "gs": "providers.stores.gcs:open_gcs",
    "az": "providers.stores.azure:open_azure",
}


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """The store at `url`: `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or
    `az://container/prefix`. Opening makes no network call.

    Options of all but `file://`, which has none: endpoint, allow_http ("true" or "false"),
    timeout_s, credentials_file (with lent ones, read again when they end), identity (the cloud
    whose machine this is, which `providers.federation` exchanges for a right at the store). Of
    `s3://` also region, access_key_id, secret_access_key, session_token, sign_bodies ("true" or
    "false"), and with identity role and audience; of `gs://` service_account_key (the content of
    the file), and with identity service_account, pool and audience; of `az://` account, which it
    must have, account_key, sas_token, client_id (of a machine's identity), and with identity
    tenant, application and audience. Raises StoreConfigError for an
    unknown scheme, a malformed URL, an unknown option or a client library that is not installed.
    """
    options = options or {}
    if not re.match(r"[a-z0-9]+://", url):
        raise StoreConfigError(
            f"store {url!r} is no URL: write file:///folder, s3://bucket, gs://bucket or "
            "az://container"
        )
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
    if parts.scheme not in _BUCKETS:
        raise StoreConfigError(
            f"store {url!r} has the unknown scheme {parts.scheme!r}: file://, s3://, gs:// and "
            "az:// are supported"
        )
    if not parts.netloc:
        raise StoreConfigError(
            f"store {url!r} names no bucket: write {parts.scheme}://bucket/prefix"
        )
    module, function = _BUCKETS[parts.scheme].split(":")
    opened: ObjectStore = getattr(import_module(module), function)(
        parts.netloc, parts.path.strip("/"), options
    )
    return opened


def proof_of(url: str, options: Mapping[str, str]) -> Callable[[], dict[str, Any]] | None:
    """Who exchanges what this machine is for what reads the store at `url`, where its options say
    that one does: in the form that obstore takes, with `token` where it is one. Raises
    StoreConfigError; what is returned raises `providers.federation.ExchangeError`."""
    if not options.get("identity"):
        return None
    module, _, _ = _BUCKETS[urlsplit(url).scheme].partition(":")
    made: Callable[[], dict[str, Any]] = import_module(module).proof_of(options, reading=True)
    return made
