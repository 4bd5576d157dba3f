"""Types shared by the three metadata service dialects: machine facts, requests and replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

from providers.base import Notice


@dataclass(frozen=True)
class MachineFacts:
    """Facts that a machine's metadata service reports about it."""

    instance_id: str
    personality: str
    name: str
    region: str
    zone: str
    instance_type: str
    spot: bool
    first_call_delay_s: float = 0.0  # azure: duration of the very first call

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> MachineFacts:
        """Inverse of `to_data`. Raises KeyError for a missing field."""
        return cls(
            instance_id=str(data["instance_id"]),
            personality=str(data["personality"]),
            name=str(data["name"]),
            region=str(data["region"]),
            zone=str(data["zone"]),
            instance_type=str(data["instance_type"]),
            spot=bool(data["spot"]),
            first_call_delay_s=float(str(data["first_call_delay_s"])),
        )

    def to_data(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class MetadataRequest:
    """One request to the metadata service; header names in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class MetadataReply:
    """One response of the metadata service."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)


class NoticeDocument(Protocol):
    """One cloud's dialect. Thread-safe; `respond` may block (long poll).

    The deadline of a published notice is the wall time at which the machine ends.
    """

    def respond(self, request: MetadataRequest) -> MetadataReply:
        """Answer one request."""
        ...

    def publish(self, notice: Notice) -> None:
        """Show the notice from now on."""
        ...

    def withdraw(self, notice_id: str) -> None:
        """Stop showing the notice."""
        ...

    def expire_tokens(self) -> None:
        """Invalidate all session tokens, if the dialect has any."""
        ...


def json_reply(document: object, **headers: str) -> MetadataReply:
    """Compact JSON, as the vendors send it."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return MetadataReply(200, body, "application/json", headers)
