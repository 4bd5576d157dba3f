"""Object store in a Google Cloud Storage bucket, `gs://bucket/prefix`.

The version tag is the object's generation, which is never reused. One object name accepts about one
write per second [from memory, not verified]; only HEAD is rewritten at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from providers.federation import google_token, is_signed
from providers.stores.bucket import (
    COMMON,
    BackendTerms,
    BucketStore,
    load_client_class,
    open_bucket,
    parse_client_options,
    parse_identity,
)

TERMS = BackendTerms("version", "<Code>NoSuchBucket<", ())
# Google answers 401 for expired tokens and for invalid ones. A temporary token was valid once, so
# treat its 401 as expiry: the next token may work.
_TEMPORARY_TERMS = replace(TERMS, expired=("401 Unauthorized",))
# Options for identity federation (providers/federation.py). Google has no session names.
_IDENTITY_OPTIONS = ("service_account", "pool")
_FEDERATION_OPTIONS = frozenset(
    {"identity", *_IDENTITY_OPTIONS, "audience", "session", "metadata", "sts", "tokens", "iam"}
)
_OPTIONS = frozenset({*COMMON, *_FEDERATION_OPTIONS, "service_account_key"})


def open_gcs(bucket: str, prefix: str, options: Mapping[str, str]) -> BucketStore:
    """Open the store under `prefix` of `bucket`; for the options see `open_store`.

    Without credentials in the options obstore looks for them as Google's tools do: in the
    environment, then in the machine's service account.
    """
    client_class = load_client_class("gs", "GCSStore")
    client_options = parse_client_options("gs", options, _OPTIONS)
    temporary = options.get("credentials_file") or options.get("identity")
    terms = _TEMPORARY_TERMS if temporary else TERMS
    credentials: Any = {}
    if endpoint := options.get("endpoint"):
        credentials["base_url"] = endpoint
    if file := options.get("credentials_file"):
        credentials["credential_provider"] = partial(read_token, Path(file))
    elif options.get("identity"):
        credentials["credential_provider"] = credential_provider(options)
    elif key := options.get("service_account_key"):
        credentials["service_account_key"] = key

    def make_client(max_retries: int) -> Any:
        return client_class(
            bucket, prefix=prefix or None, **client_options.options(max_retries), **credentials
        )

    return open_bucket(f"gs://{bucket}/{prefix}".rstrip("/"), prefix, make_client, terms)


def credential_provider(
    options: Mapping[str, str], *, read_only: bool = False
) -> Callable[[], dict[str, Any]]:
    """A function that exchanges this machine's identity for a token of the service account,
    limited to reading with `read_only`. Raises StoreConfigError."""
    allow_http = parse_client_options("gs", options, _OPTIONS).allow_http
    # Machines that sign a request sign the name of the pool's provider instead of an audience.
    signed = is_signed(options["identity"])
    required = _IDENTITY_OPTIONS if signed else (*_IDENTITY_OPTIONS, "audience")
    cloud, endpoints = parse_identity(options, "gs", required, allow_http)
    account, pool = (options[name] for name in _IDENTITY_OPTIONS)
    audience = options.get("audience", "")
    return partial(google_token, cloud, account, pool, audience, endpoints, reading=read_only)


def read_token(file: Path) -> dict[str, Any]:
    """Read the token that `providers.gcp.credential_leases` wrote. Raises OSError, ValueError.

    obstore calls this again when less than five minutes of it are left.
    """
    data = json.loads(file.read_bytes())
    return {
        "token": data["access_token"],
        "expires_at": datetime.fromisoformat(data["expiry"]),
    }
