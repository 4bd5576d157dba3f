"""Credentials that are lent to a machine: of one prefix of a bucket, and for a while.

A machine keeps them in one file, in the form that its cloud's own tools read: for S3 what a
`credential_process` prints, for Google Cloud Storage an access token with its expiry, for Azure a
SAS token. Standard library only: the node agent ships this file too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs, quote_plus

if TYPE_CHECKING:
    from providers.iam.policy import Place

KINDS = ("aws", "gcp", "azure")
_PLAIN = frozenset({"AccessKeyId", "Expiration", "expiry"})  # of the two JSON documents
_SECRET_CHARS = 16


@dataclass(frozen=True)
class LeasedCredentials:
    """`kind` says in which form `text` is, which is secret; `expires_at_us` is the cloud's word."""

    kind: str
    text: str = field(repr=False)
    expires_at_us: int

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


class CredentialIssuer(Protocol):
    """Makes credentials that reach nothing but one place, for as long as its cloud allows."""

    def lend(self, place: Place, name: str) -> LeasedCredentials:
        """Fresh ones for `place`; `name` is what the cloud's own records call who has them. Raises
        ProviderError."""
        ...


def parse_lent(data: Mapping[str, Any]) -> LeasedCredentials:
    """Raises ValueError, which never has the secret in it."""
    kind, text, expires = (data.get(name) for name in ("kind", "text", "expires_at_us"))
    if kind not in KINDS:
        raise ValueError(f"lent credentials are of the kind {kind!r}, not {', '.join(KINDS)}")
    if not isinstance(text, str) or not text:
        raise ValueError("lent credentials have no text")
    if isinstance(expires, bool) or not isinstance(expires, int) or expires <= 0:
        raise ValueError("lent credentials do not say when they end")
    return LeasedCredentials(str(kind), text, expires)


def secrets_in(text: str) -> list[str]:
    """What of a loan's text nobody may see: every long word of a JSON document but names and times,
    else the text itself and, of a SAS token, its signature in both spellings."""
    try:
        values = json.loads(text).items()
    except (ValueError, AttributeError):
        signatures = parse_qs(text).get("sig", [])
        return [text, *signatures, *map(quote_plus, signatures)]
    return [
        value
        for name, value in values
        if name not in _PLAIN and isinstance(value, str) and len(value) >= _SECRET_CHARS
    ]


def aws_text(key: str, secret: str, token: str, expires: datetime) -> str:
    """What a `credential_process` prints; the SDKs ask it again before the time is over."""
    moment = expires.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret}
    return json.dumps(document | {"SessionToken": token, "Expiration": moment})


def micros(moment: datetime) -> int:
    """Microseconds since the epoch."""
    return int(moment.timestamp() * 1_000_000)
