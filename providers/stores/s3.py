"""Object store in an S3 bucket, `s3://bucket/prefix`.

S3's tags are digests of the content, so the data of a conditional write must contain a nonce.

For large bodies only the request is signed, not the body: SHA-256 would take most of an upload's
CPU time, and a small signed object (the manifest) holds a digest of the data anyway. If the bucket
policy requires signed bodies (`s3:x-amz-content-sha256`), set the option `sign_bodies`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from providers.federation import aws_session
from providers.stores.base import StoreConfigError
from providers.stores.bucket import (
    COMMON,
    BackendTerms,
    BucketStore,
    load_client_class,
    open_bucket,
    parse_client_options,
    parse_identity,
)

TERMS = BackendTerms("e_tag", "<Code>NoSuchBucket<", ("ExpiredToken",))
_CREDENTIALS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
# Options for identity federation (providers/federation.py).
_FEDERATION_OPTIONS = frozenset({"identity", "role", "audience", "session", "sts", "metadata"})
_OPTIONS = frozenset({*COMMON, *_CREDENTIALS, *_FEDERATION_OPTIONS, "sign_bodies"})


def open_s3(bucket: str, prefix: str, options: Mapping[str, str]) -> BucketStore:
    """Open the store under `prefix` of `bucket`; for the options see `open_store`."""
    client_class = load_client_class("s3", "S3Store")
    client_options = parse_client_options("s3", options, _OPTIONS)
    credentials: Any = {name: options[name] for name in _CREDENTIALS if options.get(name)}
    if file := options.get("credentials_file"):
        credentials["credential_provider"] = partial(read_credentials, Path(file))
    elif options.get("identity"):
        credentials["credential_provider"] = credential_provider(options)

    def make_client(max_retries: int, **more: Any) -> Any:
        connection = client_options.options(max_retries)
        return client_class(bucket, prefix=prefix or None, **connection, **credentials, **more)

    signed = options.get("sign_bodies", "false")
    if signed not in {"true", "false"}:
        raise StoreConfigError(f"store option sign_bodies is {signed!r}: write true or false")
    make_bulk_client = partial(make_client, unsigned_payload=True) if signed == "false" else None
    return open_bucket(
        f"s3://{bucket}/{prefix}".rstrip("/"),
        prefix,
        make_client,
        TERMS,
        make_bulk_client=make_bulk_client,
    )


def credential_provider(
    options: Mapping[str, str], *, read_only: bool = False
) -> Callable[[], dict[str, Any]]:
    """A function that exchanges this machine's identity for credentials of the role, limited to
    reading with `read_only`. Raises StoreConfigError."""
    allow_http = parse_client_options("s3", options, _OPTIONS).allow_http
    cloud, endpoints = parse_identity(options, "s3", ("role", "audience"), allow_http)
    region = options.get("region") or "us-east-1"
    endpoints = replace(endpoints, sts=endpoints.sts or f"https://sts.{region}.amazonaws.com")
    session = options.get("session") or "spotd"
    role, audience = options["role"], options["audience"]
    return partial(aws_session, cloud, role, audience, session, endpoints, reading=read_only)


def read_credentials(file: Path) -> dict[str, Any]:
    """Read credentials in the format of a `credential_process`. Raises OSError, ValueError.

    obstore calls this again when less than five minutes of them are left.
    """
    data = json.loads(file.read_bytes())
    return {
        "access_key_id": data["AccessKeyId"],
        "secret_access_key": data["SecretAccessKey"],
        "token": data.get("SessionToken"),
        "expires_at": datetime.strptime(data["Expiration"], "%Y-%m-%dT%H:%M:%SZ").replace(
            tzinfo=timezone.utc
        ),
    }
