"""A bucket on moto's S3 server, at an address of one's choice, with conditional writes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import TYPE_CHECKING

import boto3
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

KEYS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
_numbers = itertools.count()


@dataclass(frozen=True)
class Bucket:
    """One running S3 server with one bucket; `folder` is new for each."""

    endpoint: str
    name: str = "spotd"
    folder: str = field(default_factory=lambda: f"folder-{next(_numbers)}")

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{self.folder}"

    @property
    def options(self) -> dict[str, str]:
        return {**KEYS, "endpoint": self.endpoint, "allow_http": "true", "timeout_s": "10"}


class _Atomic:
    """moto compares the tag first and writes then, and lets another write in between, as S3 does
    not: here one conditional write follows the other."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app, self._turn = app, Lock()

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"}.isdisjoint(environ):
            return self._app(environ, start)
        with self._turn:
            return self._app(environ, start)


@contextmanager
def serving(address: str = "127.0.0.1") -> Iterator[Bucket]:
    """A bucket for the length of the block."""
    app = _Atomic(DomainDispatcherApplication(create_backend_app))
    server = make_server(address, 0, app, True, request_handler=MotoRequestHandler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        made = Bucket(f"http://{address}:{server.server_port}")
        client = boto3.client(
            "s3",
            endpoint_url=made.endpoint,
            aws_access_key_id=KEYS["access_key_id"],
            aws_secret_access_key=KEYS["secret_access_key"],
            region_name=KEYS["region"],
        )
        client.create_bucket(Bucket=made.name)
        client.close()
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
