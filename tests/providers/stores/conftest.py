"""The stores that the conformance suite runs on: a folder, and a bucket on moto's server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.stores import open_store
from providers.stores.base import ObjectStore
from tests.rigs.bucket import Bucket, serving


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    with serving() as made:
        yield made


_numbers = itertools.count()


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    if request.param == "file":
        return open_store((tmp_path / "store").as_uri())
    made = request.getfixturevalue("bucket")
    return open_store(f"s3://{made.name}/prefix-{next(_numbers)}", made.options)
