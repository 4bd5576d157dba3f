"""A bucket on moto's S3 server, at an address of one's choice, with conditional writes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import boto3
from moto.server import ThreadedMotoServer

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


@contextmanager
def serving(address: str = "127.0.0.1") -> Iterator[Bucket]:
    """A bucket for the length of the block."""
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        made = Bucket(f"http://{host}:{port}")
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
        server.stop()
