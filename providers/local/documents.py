"""What a metadata service answers, without the sockets: the types its three dialects share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

from providers.base import Notice


@dataclass(frozen=True)
class MachineFacts:
    """What a machine may know about itself."""

    instance_id: str
    personality: str
    name: str
    region: str
    zone: str
    instance_type: str
    spot: bool
    first_call_delay_s: float = 0.0  # azure: how long the very first call takes

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> MachineFacts:
        """Back from `to_data`. Raises KeyError for what is missing."""
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
        """Plain JSON."""
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
    """One answer."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)


class NoticeDocument(Protocol):
    """One dialect. Safe to call from several threads; `respond` may block (long poll).

    A notice to be shown has a deadline: when the machine goes, wall time.
    """

    def respond(self, ask: MetadataRequest) -> MetadataReply:
        """Answer one request."""
        ...

    def publish(self, notice: Notice) -> None:
        """Show the notice from now on."""
        ...

    def withdraw(self, notice_id: str) -> None:
        """Show it no more."""
        ...

    def forget_tokens(self) -> None:
        """Let every session token expire now; nothing where there are none."""
        ...


def json_reply(document: object, **headers: str) -> MetadataReply:
    """Compact JSON, as the vendors send it."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return MetadataReply(200, body, "application/json", headers)
