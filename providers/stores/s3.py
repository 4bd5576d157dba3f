"""An object store in an S3 bucket, `s3://bucket/prefix`.

S3's tags are digests of the content, so a conditional body has to carry a nonce.

Of large bodies the request is signed and not the body: SHA-256 takes most of what an upload costs,
and such a body is known by a digest in something small, which is signed whole. Where a bucket's
policy wants bodies signed (`s3:x-amz-content-sha256`), the option `sign_bodies` does it.
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
    client_of,
    open_bucket,
    read_line,
    read_proof,
)

WORDS = BackendTerms("e_tag", "<Code>NoSuchBucket<", ("ExpiredToken",))
_CREDENTIALS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
# Of a machine that shows who it is: see providers/federation.py.
_PROOF = frozenset({"identity", "role", "audience", "session", "sts", "metadata"})
_OPTIONS = frozenset({*COMMON, *_CREDENTIALS, *_PROOF, "sign_bodies"})


def open_s3(bucket: str, prefix: str, options: Mapping[str, str]) -> BucketStore:
    """The store under `prefix` of `bucket`; options as `open_store` lists them."""
    client = client_of("s3", "S3Store")
    line = read_line("s3", options, _OPTIONS)
    credentials: Any = {name: options[name] for name in _CREDENTIALS if options.get(name)}
    if file := options.get("credentials_file"):
        credentials["credential_provider"] = partial(read_credentials, Path(file))
    elif options.get("identity"):
        credentials["credential_provider"] = proof_of(options)

    def make(max_retries: int, **more: Any) -> Any:
        said = line.options(max_retries)
        return client(bucket, prefix=prefix or None, **said, **credentials, **more)

    signed = options.get("sign_bodies", "false")
    if signed not in {"true", "false"}:
        raise StoreConfigError(f"store option sign_bodies is {signed!r}: write true or false")
    bulk = partial(make, unsigned_payload=True) if signed == "false" else None
    return open_bucket(f"s3://{bucket}/{prefix}".rstrip("/"), prefix, make, WORDS, make_bulk=bulk)


def proof_of(options: Mapping[str, str], *, reading: bool = False) -> Callable[[], dict[str, Any]]:
    """Who exchanges this machine's own identity for the role, with `reading` for as much of it as
    reads. Raises StoreConfigError."""
    allow_http = read_line("s3", options, _OPTIONS).allow_http
    cloud, doors = read_proof(options, ("gcp", "azure"), ("role", "audience"), allow_http)
    region = options.get("region") or "us-east-1"
    doors = replace(doors, sts=doors.sts or f"https://sts.{region}.amazonaws.com")
    name = options.get("session") or "spotd"
    role, audience = options["role"], options["audience"]
    return partial(aws_session, cloud, role, audience, name, doors, reading=reading)


def read_credentials(file: Path) -> dict[str, Any]:
    """What a file has that looks like the output of a `credential_process`: asked for again by the
    client when less than five minutes of it are left. Raises OSError, ValueError."""
    data = json.loads(file.read_bytes())
    return {
        "access_key_id": data["AccessKeyId"],
        "secret_access_key": data["SecretAccessKey"],
        "token": data.get("SessionToken"),
        "expires_at": datetime.strptime(data["Expiration"], "%Y-%m-%dT%H:%M:%SZ").replace(
            tzinfo=timezone.utc
        ),
    }
