"""Short-lived store credentials that are leased to a machine, limited to one prefix of a bucket.

A machine stores them in one file, in the format that its cloud's own tools read: for S3 the output
of a `credential_process`, for Google Cloud Storage an access token with its expiry, for Azure a SAS
token. Standard library only: the node agent ships this file too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs, quote_plus

from providers.clouds import STORES

if TYPE_CHECKING:
    from providers.iam.policy import StorePrefix

KINDS = tuple(STORES)
_PLAIN = frozenset({"AccessKeyId", "Expiration", "expiry"})  # of the two JSON documents
_SECRET_CHARS = 16


@dataclass(frozen=True)
class LeasedCredentials:
    """`kind` names the format of `text`, which is secret. The cloud sets `expires_at_us`."""

    kind: str
    text: str = field(repr=False)
    expires_at_us: int

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


class CredentialIssuer(Protocol):
    """Issues credentials that can access only one prefix, for as long as the cloud allows."""

    def issue(self, prefix: StorePrefix, session_name: str) -> LeasedCredentials:
        """Return new credentials for `prefix`. `session_name` identifies their user in the cloud's
        audit log. Raises ProviderError."""
        ...


def parse_credentials(data: Mapping[str, Any]) -> LeasedCredentials:
    """Parse leased credentials. Raises ValueError, whose text never contains the secret."""
    kind, text, expires = (data.get(name) for name in ("kind", "text", "expires_at_us"))
    if kind not in KINDS:
        raise ValueError(
            f"leased credentials have the kind {kind!r}, not one of {', '.join(KINDS)}"
        )
    if not isinstance(text, str) or not text:
        raise ValueError("leased credentials have no text")
    if isinstance(expires, bool) or not isinstance(expires, int) or expires <= 0:
        raise ValueError("leased credentials have no valid expires_at_us")
    return LeasedCredentials(str(kind), text, expires)


def secrets_in(text: str) -> list[str]:
    """Return the secrets in the text of leased credentials.

    For a JSON document these are the long string values except ids and times; else the text itself
    and the signature of the SAS token, both plain and percent-encoded.
    """
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


def aws_credentials_text(key: str, secret: str, token: str, expires: datetime) -> str:
    """Return the output of a `credential_process`. The SDKs run it again before the credentials
    expire."""
    moment = expires.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret}
    return json.dumps(document | {"SessionToken": token, "Expiration": moment})
