"""The adapter: the six verbs of the port, spoken to a local cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from providers.base import (
    AuthError,
    CapacityType,
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Notice,
    NoticeKind,
    Offer,
    OfferRequest,
    Pending,
    ThrottledError,
    UnknownOutcome,
)
from providers.local.access import NoTokenError
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
        rows = self._call("GET", "offers")["offers"]
        offers = [_offer(row, self.name) for row in rows]
        return [offer for offer in offers if _fits(offer, request)]

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """Create one machine; the same token again is the same machine."""
        tags = {**request.tags, DEPLOYMENT_TAG: self._deployment}
        body = {**vars(request), "tags": tags, "capacity_type": request.capacity_type.value}
        answer = self._call("POST", "launch", body=body)
        if "operation" in answer:
            return Pending(str(answer["operation"]))
        return Launched(str(answer["instance_id"]))

    def terminate(self, instance_id: str) -> None:
        """End a machine; an unknown id is success."""
        self._call("POST", "terminate", body={"instance_id": instance_id})

    def list(self) -> Sequence[Instance]:
        """Every machine of our deployment, those that ended within the last hour included."""
        query = {"deployment": self._deployment}
        return [_instance(row) for row in self._call("GET", "instances", query=query)["instances"]]

    def notices(self) -> Sequence[Notice]:
        """Warnings in the cloud's queue since the last call; all of a cloud that was restarted."""
        answer = self._queued(self._last_notice)
        if answer["queue"] != self._queue and self._last_notice:
            self._last_notice = 0
            answer = self._queued(0)
        self._queue, rows = answer["queue"], answer["notices"]
        self._last_notice = max((row["seq"] for row in rows), default=self._last_notice)
        return [_notice(row) for row in rows]

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Move the expiry on; an unknown id is success."""
        body = {"instance_id": instance_id, "expires_at_s": expires_at_us // 1_000_000}
        self._call("POST", "renew", body=body)

    def _queued(self, after: int) -> dict[str, Any]:
        query = {"deployment": self._deployment, "after": after}
        return self._call("GET", "notices", query=query)

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
        self.visibility_s = float(answer.headers.get("X-Visibility-S", self.visibility_s))
        if answer.status == 200:
            return answer.document
        error = answer.document.get("error", {})
        code, text = str(error.get("code", "")), str(error.get("text", answer.document))
        if code == THROTTLED:
            retry_after_s = float(error.get("retry_after_s") or 1.0)
            raise ThrottledError(text, retry_after_s=retry_after_s, code=code)
        raise ERRORS.get(code, UnknownOutcome)(text, code=code)


def _offer(row: Mapping[str, Any], provider: str) -> Offer:
    return Offer(
        **{**row, "provider": provider, "capacity_type": CapacityType(row["capacity_type"])}
    )


def _fits(offer: Offer, want: OfferRequest) -> bool:
    return (
        want.accelerator.lower() in ("", offer.accelerator.lower())
        and offer.accelerator_count >= want.accelerator_count
        and offer.cpus >= want.cpus
        and offer.memory_gib >= want.memory_gib
        and want.instance_type in ("", offer.instance_type)
        and want.cloud in ("", offer.cloud, offer.provider)
        and want.region in ("", offer.region)
        and want.zone in ("", offer.zone)
        and offer.capacity_type in want.capacity_types
    )


def _instance(row: Mapping[str, Any]) -> Instance:
    return Instance(
        instance_id=row["instance_id"],
        token=row["token"],
        tags=row["tags"],
        state=InstanceState(row["state"]),
        region=row["region"],
        zone=row["zone"],
        instance_type=row["instance_type"],
        capacity_type=CapacityType(row["capacity_type"]),
        host=row["host"],
        port=row["port"],
        ssh_user=row["ssh_user"],
        host_public_key=row["host_public_key"],
        launched_at_us=row["launched_at_us"],
        error=row["error"],
        error_code=row["error_code"],
    )


def _notice(row: Mapping[str, Any]) -> Notice:
    return Notice(
        notice_id=row["notice_id"],
        kind=NoticeKind(row["kind"]),
        deadline_us=row["deadline_us"] if row["kind"] != "rebalance" else None,
        source="local cloud queue",
        instance_id=row["instance_id"],
        text=f"local cloud: {row['kind']}",
    )
