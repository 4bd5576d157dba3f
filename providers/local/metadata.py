"""The metadata service's sockets, and its faults: down, 503, garbage, slow."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from providers.base import Notice, NoticeKind
from providers.local.blocking_http import BlockingHandler, BlockingServer
from providers.local.documents import MetadataReply, MetadataRequest, NoticeDocument

FAULTS = ("down", "error_503", "garbage", "slow", "expire_tokens")


class EventReporter(Protocol):
    """How the machine reports to its cloud."""

    def __call__(self, event: str, **data: object) -> None: ...


class MetadataServer:
    """Serves one `NoticeDocument` on a socket that is bound but does not listen yet."""

    def __init__(self, bound: socket.socket, document: NoticeDocument, tell: EventReporter) -> None:
        self._document = document
        self._tell = tell
        self._fault = ""
        self._fault_until = 0.0
        self._server = _Server(bound, _Conversation)
        self._server.answer = self._answer
        self.url = self._server.url
        self.start = self._server.start
        self.stop = self._server.stop

    def obey(self, order: Mapping[str, object]) -> None:
        """One order of the cloud: publish, withdraw, or fault. Reports when it is done."""
        match order:
            case {"publish": {"notice_id": str(name), "kind": str(kind), "deadline_us": int(at)}}:
                published_us = time.time_ns() // 1000  # before, so that nobody can be earlier
                self._document.publish(Notice(name, NoticeKind(kind), at))
                self._tell("published", notice_id=name, at_us=published_us)
            case {"withdraw": str(name)}:
                self._document.withdraw(name)
                self._tell("withdrawn", notice_id=name)
            case {"fault": {"kind": "expire_tokens"}}:
                self._document.forget_tokens()
                self._tell("faulted", kind="expire_tokens")
            case {"fault": {"kind": str(kind), "seconds": int() | float() as seconds}}:
                self._fault, self._fault_until = kind, time.monotonic() + seconds
                self._tell("faulted", kind=kind)
            case _:
                raise ValueError(f"not an order: {order!r}")

    def _answer(self, ask: MetadataRequest) -> MetadataReply | None:
        """The reply; None means: hang up without one."""
        if self._faulty("slow"):
            time.sleep(max(0.0, self._fault_until - time.monotonic()))
        if self._faulty("error_503"):
            return MetadataReply(503, b"Service Unavailable")
        reply = None if self._faulty("down") else self._document.respond(ask)
        if self._faulty("garbage"):
            return MetadataReply(200, b"<html><body>\xff{not json", "text/html")
        return None if self._faulty("down") else reply

    def _faulty(self, kind: str) -> bool:
        return self._fault == kind and time.monotonic() < self._fault_until


class _Server(BlockingServer):
    answer: Callable[[MetadataRequest], MetadataReply | None]


class _Conversation(BlockingHandler):
    server: _Server

    def _serve(self) -> None:
        split = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        ask = MetadataRequest(
            self.command,
            split.path,
            dict(parse_qsl(split.query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(length),
        )
        reply = self.server.answer(ask)
        if reply is None:
            self.close_connection = True
            return
        self.send(reply.status, {**reply.headers, "Content-Type": reply.content_type}, reply.body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815  the base class's names
