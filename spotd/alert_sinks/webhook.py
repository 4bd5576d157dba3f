"""Post to a webhook whose URL is a secret, only to the host that it names.

The daemon and spot-reaper both use it.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import urllib3

from providers.http_request import is_loopback
from spotd.base.addresses import AddressError, find_address

SLACK_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
CONNECT_S, READ_S = 3.0, 5.0
ANSWER_BYTES = 64 << 10


class WebhookError(Exception):
    """The webhook was not accepted, as far as known. The text does not quote the URL."""


@dataclass(frozen=True)
class WebhookAnswer:
    """The response; `text` is cut at ANSWER_BYTES."""

    status: int
    headers: Mapping[str, str]
    text: str


def is_webhook(url: str, allowed: Collection[str]) -> bool:
    """Return whether the URL is at Slack or at a host (or host:port) of `allowed`, and encrypted.

    Without https it would be read on its way, unless it stays on this machine.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    known = {parts.hostname, parts.netloc} & {*SLACK_HOSTS, *allowed}
    return bool(known) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts))
    )


def post(url: str, body: Mapping[str, Any]) -> WebhookAnswer:
    """Post to a `url` that `is_webhook`. Raises WebhookError.

    No proxy and no redirect is used: either would give the secret to somebody else.
    """
    parts = urlsplit(url)
    content = {"Content-Type": "application/json; charset=utf-8", "Host": parts.netloc}
    try:
        with _pool(url) as pool:
            answer = pool.request(
                "POST",
                parts.path + (f"?{parts.query}" if parts.query else ""),
                body=json.dumps(body).encode(),
                headers=content,
                redirect=False,
                preload_content=False,
            )
            try:
                data = answer.read(ANSWER_BYTES)
            finally:
                answer.close()
    except AddressError as error:
        raise WebhookError(str(error)) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        # The text of these errors quotes the URL.
        raise WebhookError(f"Slack cannot be reached: {_root(error)}") from None
    return WebhookAnswer(answer.status, answer.headers, data.decode("utf-8", "replace").strip())


def reach(url: str) -> None:
    """Connect as a post does, up to the host's proof of identity. Raises WebhookError."""
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    try:
        port = parts.port or (443 if secure else 80)
        address = find_address(host, port, public=host in SLACK_HOSTS)
        with socket.create_connection((address, port), CONNECT_S) as plain:
            if secure:
                plain.settimeout(READ_S)
                context = ssl.create_default_context()
                context.wrap_socket(plain, server_hostname=host).close()
    except AddressError as error:
        raise WebhookError(str(error)) from None
    except (OSError, ValueError) as error:
        raise WebhookError(f"{host} cannot be reached: {_root(error)}") from None


def _pool(url: str) -> urllib3.HTTPConnectionPool:
    """Return a connection pool to the very address that was checked. Raises AddressError.

    The peer has to prove that it is the host; Slack's hosts have public addresses only.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    address = find_address(host, port, public=host in SLACK_HOSTS)
    timeout = urllib3.Timeout(connect=CONNECT_S, read=READ_S)
    if parts.scheme == "https":
        return urllib3.HTTPSConnectionPool(
            address,
            port,
            retries=False,
            timeout=timeout,
            assert_hostname=host,
            server_hostname=host,
        )
    return urllib3.HTTPConnectionPool(address, port, retries=False, timeout=timeout)


def _root(error: BaseException) -> str:
    """Return the innermost cause: its text if the system wrote it, else its class."""
    while error.__cause__ is not None:
        error = error.__cause__
    return getattr(error, "strerror", None) or type(error).__name__
