"""An object store in a bucket of Google Cloud Storage, `gs://bucket/prefix`.

A version is an object's generation, which never comes back. An object's name takes about one write
in a second [from memory, not verified]: that is HEAD and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from providers.federation import google_token
from providers.stores.bucket import (
    COMMON,
    BackendTerms,
    BucketStore,
    client_of,
    open_bucket,
    read_line,
    read_proof,
)

WORDS = BackendTerms("version", "<Code>NoSuchBucket<", ())
# Of a token that is over Google says what it says of one that never was. One that was lent, or made
# for this machine, was good, and the next one may be.
_LENT = replace(WORDS, over=("401 Unauthorized",))
# Of a machine that shows who it is: see providers/federation.py. Google has no name for a session.
_NEEDED = ("service_account", "pool")
_PROOF = frozenset(
    {"identity", *_NEEDED, "audience", "session", "metadata", "sts", "tokens", "iam"}
)
_OPTIONS = frozenset({*COMMON, *_PROOF, "service_account_key"})


def open_gcs(bucket: str, prefix: str, options: Mapping[str, str]) -> BucketStore:
    """The store under `prefix` of `bucket`; options as `open_store` lists them. Without any, as
    Google's own tools find credentials: the environment, then the machine's service account."""
    client = client_of("gs", "GCSStore")
    line = read_line("gs", options, _OPTIONS)
    passing = options.get("credentials_file") or options.get("identity")
    words = _LENT if passing else WORDS
    credentials: Any = {}
    if endpoint := options.get("endpoint"):
        credentials["base_url"] = endpoint
    if file := options.get("credentials_file"):
        credentials["credential_provider"] = partial(read_token, Path(file))
    elif options.get("identity"):
        credentials["credential_provider"] = proof_of(options)
    elif key := options.get("service_account_key"):
        credentials["service_account_key"] = key

    def make(max_retries: int) -> Any:
        return client(bucket, prefix=prefix or None, **line.options(max_retries), **credentials)

    return open_bucket(f"gs://{bucket}/{prefix}".rstrip("/"), prefix, make, words)


def proof_of(options: Mapping[str, str], *, reading: bool = False) -> Callable[[], dict[str, Any]]:
    """Who exchanges this machine's own identity for a token of the account, with `reading` for one
    that can read alone. Raises StoreConfigError."""
    allow_http = read_line("gs", options, _OPTIONS).allow_http
    # A machine of AWS signs the provider's name, and no audience.
    needed = _NEEDED if options["identity"] == "aws" else (*_NEEDED, "audience")
    cloud, doors = read_proof(options, ("aws", "azure"), needed, allow_http)
    account, pool = (options[name] for name in _NEEDED)
    audience = options.get("audience", "")
    return partial(google_token, cloud, account, pool, audience, doors, reading=reading)


def read_token(file: Path) -> dict[str, Any]:
    """What `providers.gcp.credential_leases` wrote: asked for again by the client when less than
    five minutes of it are left. Raises OSError, ValueError."""
    data = json.loads(file.read_bytes())
    return {
        "token": data["access_token"],
        "expires_at": datetime.fromisoformat(data["expiry"]),
    }
