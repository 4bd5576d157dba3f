"""A Slack incoming webhook. Its URL is a secret: it stands in no log, error or event."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import urllib3

from spotd.act.addresses import find_address
from spotd.act.alerts import Alert, RouteError
from spotd.act.blocks import payload
from spotd.log import redactor
from spotd.model import Severity

CONNECT_S, READ_S = 3.0, 5.0
ANSWER_BYTES = 64 << 10
RETRY_AFTER_CAP_S = 3600.0
_SAID_CHARS = 120


@dataclass(frozen=True)
class SlackRoute:
    """Posts to `url`, which the configuration has checked; `public` is one of Slack's own hosts.
    Ends up in no proxy and follows no redirect: either would hand the secret to somebody else."""

    url: str = field(repr=False)
    min_severity: Severity = Severity.INFO
    paced: bool = True
    public: bool = False

    def __post_init__(self) -> None:
        redactor.register(self.url)
        redactor.register(urlsplit(self.url).path)

    def send(self, alerts: Sequence[Alert]) -> None:
        """Raises RouteError."""
        body = payload(alerts)
        status, headers, said = self._post(body)
        if status == 400:
            # Better plain than never: whatever it is in the blocks that Slack does not like.
            status, headers, said = self._post({"text": body["text"]})
        if status == 200 and said == "ok":
            return
        if status == 429:
            raise RouteError("Slack asks us to wait (429)", _retry_after_s(headers))
        raise RouteError(f"Slack answered {status}: {said}", gone=status in (403, 404, 410))

    def _post(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str]:
        """(status, headers, the first words of the answer)."""
        parts = urlsplit(self.url)
        content = {"Content-Type": "application/json; charset=utf-8", "Host": parts.netloc}
        try:
            with self._pool() as pool:
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
        except (urllib3.exceptions.HTTPError, OSError) as error:
            # The text of these errors quotes the URL.
            raise RouteError(f"Slack cannot be reached: {_root(error)}") from None
        said = redactor.clean(data.decode("utf-8", "replace").strip())
        return answer.status, answer.headers, " ".join(said.split())[:_SAID_CHARS]

    def _pool(self) -> urllib3.HTTPConnectionPool:
        """To the very address that was judged, which has to prove that it is the host. Raises
        RouteError."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = find_address(host, port, public=self.public)
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
    """The innermost cause: its text where the system wrote it, else its kind."""
    while error.__cause__ is not None:
        error = error.__cause__
    return getattr(error, "strerror", None) or type(error).__name__


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return 0.0
    return min(max(seconds, 1.0), RETRY_AFTER_CAP_S)
