"""HTTP client of the local cloud: one connection per call, never through a proxy."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from providers.http_request import send_request
from providers.local.access import auth_header

_BODY_LIMIT_BYTES = 64 << 20


class NoResponseError(Exception):
    """There was no readable response; the call may or may not have taken effect."""


@dataclass(frozen=True)
class Response:
    """A JSON response with any HTTP status."""

    status: int
    document: dict[str, Any]
    headers: Mapping[str, str]


class Client:
    """Calls the API of one local cloud. Thread-safe."""

    def __init__(self, url: str, timeout_s: float, token_file: Path | None) -> None:
        split = urlsplit(url)
        if split.scheme != "http" or not split.hostname or not split.port:
            raise ValueError(f"the local cloud's url is {url!r}; give http://127.0.0.1:PORT")
        self._host, self._port = split.hostname, split.port
        self._timeout_s = timeout_s
        self._token_file = token_file
        self.url = url

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Response:
        """Send one request. Raises NoResponseError, NoTokenError."""
        headers = auth_header(self._token_file)
        target = f"{path}?{urlencode(query)}" if query else path
        data = json.dumps(body).encode() if body is not None else None
        try:
            response = send_request(
                (self._host, self._port),
                method,
                target,
                timeout_s=self._timeout_s,
                limit_bytes=_BODY_LIMIT_BYTES,
                headers=headers,
                body=data,
            )
        except (OSError, ValueError, http.client.HTTPException) as error:
            message = f"{method} {path} on the local cloud at {self.url}: no answer: {error!r}"
            raise NoResponseError(message) from error
        try:
            document = json.loads(response.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            message = f"{method} {path}: the answer ({response.status}) is not JSON: "
            raise NoResponseError(f"{message}{response.body[:80]!r}")
        return Response(response.status, document, response.headers)
