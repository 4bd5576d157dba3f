"""The adapter: the verbs of the port, spoken to a local cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from providers.base import (
    AuthError,
    Instance,
    Launched,
    LaunchRequest,
    Leftover,
    Notice,
    Offer,
    OfferRequest,
    Pending,
    ThrottledError,
    UnknownOutcome,
)
from providers.local.access import NoTokenError
from providers.local.answers import (
    read_instance,
    read_leftover,
    read_notice,
    read_offer,
    read_seconds,
    read_text,
    rows_of,
)
from providers.local.client import Client, NoAnswer
from providers.local.codes import ERRORS, THROTTLED
from providers.local.power import POWER_OFF

DEPLOYMENT_TAG = "spotd-deployment"  # as in admission.py, which is the other side of the wire


class LocalCloud:
    """One personality ("aws", "gcp", "azure") of the local cloud at `url`, whose folder has the
    `token_file`.

    Time-outs, broken connections, 5xx and unreadable answers are UnknownOutcome.
    """

    local = True
    limits_life = True
    power_off = (POWER_OFF,)  # a program of the machine's own: never this computer's
    prepared_file = ""

    def __init__(
        self,
        name: str,
        url: str,
        personality: str,
        deployment: str,
        timeout_s: float = 10.0,
        token_file: Path | None = None,
    ) -> None:
        self.name = name
        self.watcher = personality
        self.visibility_s = 5.0  # until the cloud has told, with its first answer
        self._deployment = deployment
        self._client = Client(url, timeout_s, token_file)
        self._base = f"/v1/{personality}"
        self._queue, self._last_notice = "", 0

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """What fits and is on sale now."""
        read = partial(read_offer, provider=self.name)
        offers = rows_of(self._call("GET", "offers"), "offers", read)
        return [offer for offer in offers if request.admits(offer)]

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """Create one machine; the same token again is the same machine."""
        tags = {**request.tags, DEPLOYMENT_TAG: self._deployment}
        body = {**vars(request), "tags": tags, "capacity_type": request.capacity_type.value}
        answer = self._call("POST", "launch", body=body)
        if "operation" in answer:
            return Pending(read_text(answer, "operation"))
        return Launched(read_text(answer, "instance_id"))

    def terminate(self, instance_id: str) -> None:
        """End a machine; an unknown id is success."""
        self._call("POST", "terminate", body={"instance_id": instance_id})

    def list(self) -> Sequence[Instance]:
        """Every machine of our deployment, those that ended within the last hour included."""
        query = {"deployment": self._deployment}
        return rows_of(self._call("GET", "instances", query=query), "instances", read_instance)

    def notices(self) -> Sequence[Notice]:
        """Warnings in the cloud's queue since the last call; all of a cloud that was restarted."""
        queue, rows = self._queued(self._last_notice)
        if queue != self._queue and self._last_notice:
            self._last_notice = 0
            queue, rows = self._queued(0)
        self._queue = queue
        self._last_notice = max((seq for seq, _ in rows), default=self._last_notice)
        return [notice for _, notice in rows]

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Move the expiry on; an unknown id is success."""
        body = {"instance_id": instance_id, "expires_at_s": expires_at_us // 1_000_000}
        self._call("POST", "renew", body=body)

    def leftovers(self) -> Sequence[Leftover]:
        """What machines of our deployment left behind."""
        query = {"deployment": self._deployment}
        return rows_of(self._call("GET", "leftovers", query=query), "leftovers", read_leftover)

    def discard(self, leftover_id: str) -> None:
        """Delete one; an unknown id is success."""
        self._call("POST", "discard", body={"leftover_id": leftover_id})

    def _queued(self, after: int) -> tuple[str, Sequence[tuple[int, Notice]]]:
        query = {"deployment": self._deployment, "after": after}
        answer = self._call("GET", "notices", query=query)
        return read_text(answer, "queue"), rows_of(answer, "notices", read_notice)

    def _call(
        self,
        method: str,
        verb: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        try:
            answer = self._client.call(method, f"{self._base}/{verb}", query=query, body=body)
        except NoTokenError as missing:
            raise AuthError(str(missing), code="no_token") from None
        except NoAnswer as nothing:
            raise UnknownOutcome(str(nothing)) from nothing
        told = answer.headers.get("X-Visibility-S", self.visibility_s)
        self.visibility_s = read_seconds(told, self.visibility_s)
        if answer.status == 200:
            return answer.document
        error = answer.document.get("error")
        error = error if isinstance(error, dict) else {}
        code, text = str(error.get("code", "")), str(error.get("text", answer.document))
        if code == THROTTLED:
            retry_after_s = read_seconds(error.get("retry_after_s"), 1.0)
            raise ThrottledError(text, retry_after_s=retry_after_s, code=code)
        raise ERRORS.get(code, UnknownOutcome)(text, code=code)
