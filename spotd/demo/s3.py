"""A bucket on moto's S3 server, at an address of one's choice, with conditional writes.

`python -m spotd.demo.s3` serves one until its standard input ends, and says where first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import TYPE_CHECKING

import boto3
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

from spotd.demo.bucket import KEYS, Bucket

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


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


class Quiet(MotoRequestHandler):
    """No line for each request, and no traceback for an answer that is lost on purpose."""

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002
        """Nothing."""

    def connection_dropped(self, error: BaseException, environ: object = None) -> None:
        """Nothing."""


@contextmanager
def serving(
    address: str = "127.0.0.1", wrap: Callable[[WSGIApplication], WSGIApplication] = lambda app: app
) -> Iterator[Bucket]:
    """A bucket for the length of the block, behind what `wrap` makes of the server."""
    app = wrap(_Atomic(DomainDispatcherApplication(create_backend_app)))
    server = make_server(address, 0, app, True, request_handler=Quiet)
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


def main() -> None:
    """Serve until nobody holds the other end of our standard input."""
    with serving() as made:
        place = {"endpoint": made.endpoint, "name": made.name, "folder": made.folder}
        print(json.dumps(place), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
