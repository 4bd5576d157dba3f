"""A daemon with one provider loads no other cloud's SDK, even when it calls its cloud."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.imports import ROWS, clouds, measure

pytestmark = pytest.mark.xdist_group("imports")  # the stand-ins of three clouds, once

Clouds = tuple[dict[str, dict[str, Any]], dict[str, str]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clouds]:
    with clouds(tmp_path_factory.mktemp("clouds")) as result:
        yield result


@pytest.mark.parametrize("kinds", ROWS[:-1], ids="+".join)
def test_only_the_sdks_of_the_clouds_that_it_has(running: Clouds, kinds: tuple[str, ...]) -> None:
    assert measure(kinds, *running)["sdks"] == [*kinds]
