"""Signing of request bodies to S3."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectStore, StoreConfigError
from providers.stores.bucket import BULK_BYTES

UNSIGNED = "UNSIGNED-PAYLOAD"


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.digests.append(self.headers["x-amz-content-sha256"])  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Request) as http_server:
        http_server.digests = []  # type: ignore[attr-defined]
        threading.Thread(target=http_server.serve_forever, daemon=True).start()
        yield http_server
        http_server.shutdown()


def store_at(server: ThreadingHTTPServer, **options: str) -> ObjectStore:
    keys = {"access_key_id": "a", "secret_access_key": "s", "region": "us-east-1"}
    endpoint = f"http://127.0.0.1:{server.server_port}"
    return open_store("s3://b", {**keys, "endpoint": endpoint, "allow_http": "true", **options})


def test_large_bodies_go_unsigned_and_what_names_them_does_not(server: ThreadingHTTPServer) -> None:
    store = store_at(server)
    store.put("large", bytes(BULK_BYTES))
    store.put("small", bytes(BULK_BYTES - 1))
    store.put_if("condition", bytes(BULK_BYTES), None)
    digests = server.digests  # type: ignore[attr-defined]
    assert [digest == UNSIGNED for digest in digests] == [True, False, False]


def test_every_body_is_signed_where_the_bucket_wants_it(server: ThreadingHTTPServer) -> None:
    store_at(server, sign_bodies="true").put("large", bytes(BULK_BYTES))
    digests = server.digests  # type: ignore[attr-defined]
    assert len(digests) == 1
    assert digests[0] != UNSIGNED


def test_sign_bodies_is_true_or_false(server: ThreadingHTTPServer) -> None:
    with pytest.raises(StoreConfigError, match="sign_bodies is 'yes': write true or false"):
        store_at(server, sign_bodies="yes")
