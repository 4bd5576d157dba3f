"""HTTP to the local cloud: one short connection a call, never through a proxy."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from providers.http_request import exchange
from providers.local.access import credentials

_BODY_LIMIT_BYTES = 64 << 20


class NoAnswer(Exception):
    """Nothing readable came back; the call may or may not have been done."""


@dataclass(frozen=True)
class Answer:
    """A JSON object that came back, whatever the status."""

    status: int
    document: dict[str, Any]
    headers: Mapping[str, str]


class Client:
    """Calls of one local cloud; safe to share between threads."""

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
    ) -> Answer:
        """One call. Raises NoAnswer, NoTokenError."""
        headers = credentials(self._token_file)
        target = f"{path}?{urlencode(query)}" if query else path
        data = json.dumps(body).encode() if body is not None else None
        try:
            heard = exchange(
                (self._host, self._port),
                method,
                target,
                timeout_s=self._timeout_s,
                limit_bytes=_BODY_LIMIT_BYTES,
                headers=headers,
                body=data,
            )
        except (OSError, ValueError, http.client.HTTPException) as error:
            text = f"{method} {path} on the local cloud at {self.url}: no answer: {error!r}"
            raise NoAnswer(text) from error
        try:
            document = json.loads(heard.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            shown = f"({heard.status}) is no JSON: {heard.body[:80]!r}"
            raise NoAnswer(f"{method} {path}: the answer {shown}")
        return Answer(heard.status, document, heard.headers)
