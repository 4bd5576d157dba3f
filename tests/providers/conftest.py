"""Servers of object stores, each started once where a test needs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotd.demo.bucket import Bucket
from spotd.demo.s3 import serving
from tests.fixtures import azurite as azurite_rig
from tests.fixtures import gcs as gcs_rig
from tests.fixtures.azurite import Azurite
from tests.fixtures.gcs import Gcs


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    with serving() as made:
        yield made


@pytest.fixture(scope="session")
def gcs() -> Iterator[Gcs]:
    with gcs_rig.serving() as made:
        yield made


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with azurite_rig.serving() as made:
        yield made
