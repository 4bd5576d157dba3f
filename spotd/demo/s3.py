"""A bucket on moto's S3 server, with atomic conditional writes.

`python -m spotd.demo.s3` prints the bucket's address as JSON and serves it until its standard input
is closed.
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

from spotd.demo.bucket import CREDENTIALS, Bucket

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class _AtomicWrites:
    """Serializes conditional writes.

    Unlike S3, moto allows another write between the comparison of the tag and the write.
    """

    def __init__(self, app: WSGIApplication) -> None:
        self._app, self._lock = app, Lock()

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"}.isdisjoint(environ):
            return self._app(environ, start)
        with self._lock:
            return self._app(environ, start)


class QuietRequestHandler(MotoRequestHandler):
    """Logs neither requests nor connections that tests drop on purpose."""

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002
        """Do nothing."""

    def connection_dropped(self, error: BaseException, environ: object = None) -> None:
        """Do nothing."""


@contextmanager
def serving(
    address: str = "127.0.0.1", wrap: Callable[[WSGIApplication], WSGIApplication] = lambda app: app
) -> Iterator[Bucket]:
    """Serve a bucket in a thread. `wrap` may add middleware to the server."""
    app = wrap(_AtomicWrites(DomainDispatcherApplication(create_backend_app)))
    server = make_server(address, 0, app, True, request_handler=QuietRequestHandler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        bucket = Bucket(f"http://{address}:{server.server_port}")
        client = boto3.client(
            "s3",
            endpoint_url=bucket.endpoint,
            aws_access_key_id=CREDENTIALS["access_key_id"],
            aws_secret_access_key=CREDENTIALS["secret_access_key"],
            region_name=CREDENTIALS["region"],
        )
        client.create_bucket(Bucket=bucket.name)
        client.close()
        yield bucket
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main() -> None:
    """Serve a bucket until standard input is closed."""
    with serving() as bucket:
        description = {"endpoint": bucket.endpoint, "name": bucket.name, "folder": bucket.folder}
        print(json.dumps(description), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
