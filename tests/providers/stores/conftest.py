"""The stores that the conformance suite runs on: a folder, and a bucket on moto's server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from providers.stores import open_store
from providers.stores.base import ObjectStore

KEYS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}


@dataclass(frozen=True)
class Bucket:
    """One running S3 server with one bucket."""

    endpoint: str
    name: str = "spotd"

    @property
    def options(self) -> dict[str, str]:
        return {**KEYS, "endpoint": self.endpoint, "allow_http": "true", "timeout_s": "10"}


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        made = Bucket(f"http://{host}:{port}")
        client = boto3.client(
            "s3",
            endpoint_url=made.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=made.name)
        client.close()
        yield made
    finally:
        server.stop()


_numbers = itertools.count()


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    if request.param == "file":
        return open_store((tmp_path / "store").as_uri())
    made = request.getfixturevalue("bucket")
    return open_store(f"s3://{made.name}/prefix-{next(_numbers)}", made.options)
