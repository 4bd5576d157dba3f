"""HTTP to the local cloud: one short connection a call, never through a proxy."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from providers.local.access import credentials


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
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = json.dumps(body).encode() if body is not None else None
            connection.request(method, target, body=data, headers=headers)
            response = connection.getresponse()
            raw, status, told = response.read(), response.status, dict(response.getheaders())
        except (OSError, http.client.HTTPException) as error:
            text = f"{method} {path} on the local cloud at {self.url}: no answer: {error!r}"
            raise NoAnswer(text) from error
        finally:
            connection.close()
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise NoAnswer(f"{method} {path}: the answer ({status}) is no JSON: {raw[:80]!r}")
        return Answer(status, document, told)
