"""Send one HTTP request to the metadata service on the machine's link-local address.

Standard library only, and never through a proxy: the metadata service describes the machine that
asks, and a proxy would ask about another one.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from providers.base import MetadataError
from providers.http_request import send_request

_BODY_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True)
class MetadataResponse:
    """An HTTP response with any status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace").strip()


def request(
    base_url: str,
    path: str,
    *,
    timeout_s: float,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> MetadataResponse:
    """Send one request to `base_url + path`.

    Raises MetadataError when no usable response arrives within `timeout_s`.
    """
    parts = urlsplit(base_url)
    if parts.scheme != "http" or not parts.hostname:
        raise MetadataError(f"metadata address {base_url!r} is not http://host[:port]")
    try:
        response = send_request(
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
    lower_case = {name.lower(): value for name, value in response.headers.items()}
    return MetadataResponse(response.status, lower_case, response.body)


def unexpected_status(answer: MetadataResponse, path: str) -> MetadataError:
    """The error for a response with a status that the caller cannot use."""
    return MetadataError(f"{path}: status {answer.status}: {answer.text[:200]!r}")
