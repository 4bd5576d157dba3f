"""Provider adapter of the local cloud."""

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
    parse_instance,
    parse_leftover,
    parse_notice,
    parse_offer,
    parse_rows,
    parse_seconds,
    parse_text,
)
from providers.local.client import Client, NoResponseError
from providers.local.codes import ERRORS, THROTTLED
from providers.local.power import POWER_OFF

DEPLOYMENT_TAG = "spotd-deployment"  # the same as in launch_validation.py on the server side


class LocalCloud:
    """One personality ("aws", "gcp", "azure") of the local cloud at `url`.

    Timeouts, broken connections, 5xx and unreadable responses raise UnknownOutcome.
    """

    local = True
    limits_life = True
    power_off = (POWER_OFF,)  # a program that exists only on the local machine's PATH
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
        self.visibility_s = 5.0  # until the first response says it
        self._deployment = deployment
        self._client = Client(url, timeout_s, token_file)
        self._base = f"/v1/{personality}"
        self._queue, self._last_notice = "", 0

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """Offers that fit the request and are on sale now."""
        parse_row = partial(parse_offer, provider=self.name)
        offers = parse_rows(self._call("GET", "offers"), "offers", parse_row)
        return [offer for offer in offers if request.admits(offer)]

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """Launch one machine. Idempotent: the same token returns the same machine."""
        tags = {**request.tags, DEPLOYMENT_TAG: self._deployment}
        body = {**vars(request), "tags": tags, "capacity_type": request.capacity_type.value}
        response = self._call("POST", "launch", body=body)
        if "operation" in response:
            return Pending(parse_text(response, "operation"))
        return Launched(parse_text(response, "instance_id"))

    def terminate(self, instance_id: str) -> None:
        """Terminate a machine; an unknown id is not an error."""
        self._call("POST", "terminate", body={"instance_id": instance_id})

    def list(self) -> Sequence[Instance]:
        """All machines of this deployment, including those that ended within the last hour."""
        query = {"deployment": self._deployment}
        return parse_rows(self._call("GET", "instances", query=query), "instances", parse_instance)

    def notices(self) -> Sequence[Notice]:
        """Notices queued since the last call; all of them if the cloud was restarted."""
        queue, rows = self._queued_notices(self._last_notice)
        if queue != self._queue and self._last_notice:
            self._last_notice = 0
            queue, rows = self._queued_notices(0)
        self._queue = queue
        self._last_notice = max((seq for seq, _ in rows), default=self._last_notice)
        return [notice for _, notice in rows]

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Set a later expiry; an unknown id is not an error."""
        body = {"instance_id": instance_id, "expires_at_s": expires_at_us // 1_000_000}
        self._call("POST", "renew", body=body)

    def leftovers(self) -> Sequence[Leftover]:
        """Resources that this deployment's terminated machines left behind."""
        query = {"deployment": self._deployment}
        return parse_rows(self._call("GET", "leftovers", query=query), "leftovers", parse_leftover)

    def discard(self, leftover_id: str) -> None:
        """Delete a leftover; an unknown id is not an error."""
        self._call("POST", "discard", body={"leftover_id": leftover_id})

    def _queued_notices(self, after: int) -> tuple[str, Sequence[tuple[int, Notice]]]:
        query = {"deployment": self._deployment, "after": after}
        response = self._call("GET", "notices", query=query)
        return parse_text(response, "queue"), parse_rows(response, "notices", parse_notice)

    def _call(
        self,
        method: str,
        verb: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        try:
            response = self._client.call(method, f"{self._base}/{verb}", query=query, body=body)
        except NoTokenError as error:
            raise AuthError(str(error), code="no_token") from None
        except NoResponseError as error:
            raise UnknownOutcome(str(error)) from error
        visibility = response.headers.get("X-Visibility-S")
        self.visibility_s = parse_seconds(visibility, self.visibility_s)
        if response.status == 200:
            return response.document
        details = response.document.get("error")
        details = details if isinstance(details, dict) else {}
        code, message = str(details.get("code", "")), str(details.get("text", response.document))
        if code == THROTTLED:
            retry_after_s = parse_seconds(details.get("retry_after_s"), 1.0)
            raise ThrottledError(message, retry_after_s=retry_after_s, code=code)
        raise ERRORS.get(code, UnknownOutcome)(message, code=code)
