"""A metadata service for tests: the local cloud's own, or one that answers what the test says."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from providers.base import Notice
from providers.local.dialects import document_for
from providers.local.documents import Ask, Facts, Reply
from providers.local.metadata import MetadataServer


@dataclass
class Metadata:
    """A running service; `told` is what it reported to its cloud."""

    server: MetadataServer
    told: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.server.url

    def publish(self, kind: str, deadline_us: int, notice_id: str = "notice-1") -> None:
        body = {"notice_id": notice_id, "kind": kind, "deadline_us": deadline_us}
        self.server.obey({"publish": body})

    def withdraw(self, notice_id: str = "notice-1") -> None:
        self.server.obey({"withdraw": notice_id})

    def fault(self, kind: str, seconds: float = 60.0) -> None:
        self.server.obey({"fault": {"kind": kind, "seconds": seconds}})


@contextmanager
def serve_metadata(
    personality: str, *, name: str = "vm-1", first_call_delay_s: float = 0.0
) -> Iterator[Metadata]:
    """The exact documents of one cloud."""
    facts = Facts("i-1", personality, name, "region", "zone", "type", True, first_call_delay_s)
    told: list[tuple[str, dict[str, object]]] = []
    document = document_for(
        facts, lambda notice_id: told.append(("acknowledged", {"id": notice_id}))
    )
    with _serving(document) as server:
        yield Metadata(server, told)


class Scripted:
    """Answers with what `reply` gives, and remembers what was asked."""

    def __init__(self, reply: Callable[[Ask], Reply]) -> None:
        self.reply = reply
        self.asked: list[Ask] = []

    def respond(self, ask: Ask) -> Reply:
        self.asked.append(ask)
        return self.reply(ask)

    def publish(self, notice: Notice) -> None:
        raise NotImplementedError

    def withdraw(self, notice_id: str) -> None:
        raise NotImplementedError

    def forget_tokens(self) -> None:
        raise NotImplementedError


@contextmanager
def serve_script(reply: Callable[[Ask], Reply]) -> Iterator[tuple[str, Scripted]]:
    """A service that says what the test wants; gives its address and the record."""
    script = Scripted(reply)
    with _serving(script) as server:
        yield server.url, script


@contextmanager
def _serving(document: object) -> Iterator[MetadataServer]:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = MetadataServer(bound, document, lambda _event, **_data: None)  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.stop()
