"""HTTP server of a machine's metadata service, with faults: down, 503, garbage, slow."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from providers.base import Notice, NoticeKind
from providers.cloud_facts import alternatives
from providers.local.aws_documents import AwsDocuments
from providers.local.azure_documents import AzureDocuments
from providers.local.blocking_http import BlockingHandler, BlockingServer
from providers.local.documents import (
    MachineFacts,
    MetadataReply,
    MetadataRequest,
    NoticeDocument,
)
from providers.local.gcp_documents import GcpDocuments
from providers.local.scenario import PERSONALITIES

FAULTS = ("down", "error_503", "garbage", "slow", "expire_tokens")


class EventReporter(Protocol):
    """Sends an event of the machine to its cloud."""

    def __call__(self, event: str, **data: object) -> None: ...


def document_for(
    facts: MachineFacts, acknowledged: Callable[[str], None] = lambda _notice_id: None
) -> NoticeDocument:
    """The dialect of the machine's cloud. Raises ValueError for an unknown personality.

    `acknowledged` is called with the id of each notice that the machine approves.
    """
    match facts.personality:
        case "aws":
            return AwsDocuments(facts)
        case "gcp":
            return GcpDocuments(facts)
        case "azure":
            return AzureDocuments(facts, acknowledged)
    known = alternatives(PERSONALITIES)
    raise ValueError(f"no metadata dialect called {facts.personality!r}: use {known}")


class MetadataServer:
    """Serves a `NoticeDocument` on a socket that is bound but not listening."""

    def __init__(
        self, bound: socket.socket, document: NoticeDocument, report: EventReporter
    ) -> None:
        self._document = document
        self._report = report
        self._fault = ""
        self._fault_until = 0.0
        self._server = _Server(bound, _Handler)
        self._server.answer = self._answer
        self.url = self._server.url
        self.start = self._server.start
        self.stop = self._server.stop

    def handle_order(self, order: Mapping[str, object]) -> None:
        """Execute an order of the cloud (publish, withdraw, fault) and report it done."""
        match order:
            case {"publish": {"notice_id": str(name), "kind": str(kind), "deadline_us": int(at)}}:
                published_us = time.time_ns() // 1000  # first: no reader can have seen it earlier
                self._document.publish(Notice(name, NoticeKind(kind), at))
                self._report("published", notice_id=name, at_us=published_us)
            case {"withdraw": str(name)}:
                self._document.withdraw(name)
                self._report("withdrawn", notice_id=name)
            case {"fault": {"kind": "expire_tokens"}}:
                self._document.expire_tokens()
                self._report("faulted", kind="expire_tokens")
            case {"fault": {"kind": str(kind), "seconds": int() | float() as seconds}}:
                self._fault, self._fault_until = kind, time.monotonic() + seconds
                self._report("faulted", kind=kind)
            case _:
                raise ValueError(f"not an order: {order!r}")

    def _answer(self, request: MetadataRequest) -> MetadataReply | None:
        """The reply; None closes the connection without one."""
        if self._faulty("slow"):
            time.sleep(max(0.0, self._fault_until - time.monotonic()))
        if self._faulty("error_503"):
            return MetadataReply(503, b"Service Unavailable")
        reply = None if self._faulty("down") else self._document.respond(request)
        if self._faulty("garbage"):
            return MetadataReply(200, b"<html><body>\xff{not json", "text/html")
        return None if self._faulty("down") else reply

    def _faulty(self, kind: str) -> bool:
        return self._fault == kind and time.monotonic() < self._fault_until


class _Server(BlockingServer):
    answer: Callable[[MetadataRequest], MetadataReply | None]


class _Handler(BlockingHandler):
    server: _Server

    def _serve(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        request = MetadataRequest(
            self.command,
            url.path,
            dict(parse_qsl(url.query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(length),
        )
        reply = self.server.answer(request)
        if reply is None:
            self.close_connection = True
            return
        self.send(reply.status, {**reply.headers, "Content-Type": reply.content_type}, reply.body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815  the base class's names
