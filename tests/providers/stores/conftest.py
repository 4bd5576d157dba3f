"""The stores that the conformance suite runs on: a folder, and buckets on local servers for S3,
Google Cloud Storage and Azure Blob."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectStore
from spotd.demo.bucket import Bucket
from tests.fixtures import azurite as azurite_rig
from tests.fixtures import gcs as gcs_rig
from tests.fixtures.azurite import Azurite
from tests.fixtures.gcs import Gcs

# Each server is started once, by the one process that has all its tests.
KINDS = [
    pytest.param("s3"),
    pytest.param("gs", marks=pytest.mark.xdist_group("gcs")),
    pytest.param("az", marks=pytest.mark.xdist_group("azurite")),
]
_numbers = itertools.count()


@dataclass(frozen=True)
class Remote:
    """A bucket: its URL and the options to open it."""

    root: str
    options: dict[str, str]

    def url(self) -> str:
        """URL of a new, empty folder in the bucket."""
        return f"{self.root}/prefix-{next(_numbers)}"


@pytest.fixture(params=KINDS)
def remote(request: pytest.FixtureRequest) -> Remote:
    """A bucket of each cloud."""
    return remote_of(request, request.param)


def remote_of(request: pytest.FixtureRequest, kind: str) -> Remote:
    if kind == "gs":
        gcs: Gcs = request.getfixturevalue("gcs")
        return Remote(f"gs://{gcs_rig.BUCKET}", gcs.options)
    if kind == "az":
        azurite: Azurite = request.getfixturevalue("azurite")
        return Remote(f"az://{azurite_rig.CONTAINER}", azurite.options)
    bucket: Bucket = request.getfixturevalue("bucket")
    return Remote(f"s3://{bucket.name}", bucket.options)


@pytest.fixture(params=["file", *KINDS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    return store_of(request, request.param, tmp_path)


def store_of(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> ObjectStore:
    if kind == "file":
        return open_store((tmp_path / "store").as_uri())
    remote_bucket = remote_of(request, kind)
    return open_store(remote_bucket.url(), remote_bucket.options)
