"""One HTTP exchange with a metadata service on the machine's link-local address.

Standard library only, and never through a proxy: the metadata service answers this machine alone,
and a proxy would ask it about another one.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from providers.base import MetadataError
from providers.http_request import exchange

_BODY_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True)
class Answer:
    """An HTTP answer of any status; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace").strip()


def ask(
    base_url: str,
    path: str,
    *,
    timeout_s: float,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> Answer:
    """Send one request to `base_url + path`. Raises MetadataError when no sensible answer came in
    `timeout_s`."""
    parts = urlsplit(base_url)
    if parts.scheme != "http" or not parts.hostname:
        raise MetadataError(f"metadata address {base_url!r} is not http://host[:port]")
    try:
        heard = exchange(
            (parts.hostname, parts.port or 80),
            method,
            parts.path.rstrip("/") + path,
            timeout_s=timeout_s,
            limit_bytes=_BODY_LIMIT_BYTES,
            headers=headers or {},
            body=body,
        )
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise MetadataError(f"{method} {base_url}{path}: {error or type(error).__name__}") from None
    found = {name.lower(): value for name, value in heard.headers.items()}
    return Answer(heard.status, found, heard.body)


def refuse(answer: Answer, path: str) -> MetadataError:
    """The error for an answer that the caller has no use for."""
    return MetadataError(f"{path}: status {answer.status}: {answer.text[:200]!r}")
