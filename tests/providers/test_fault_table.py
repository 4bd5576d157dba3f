"""docs/conformance.md matches the tests: page, table and tests are generated from one source."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.providers.fault_table import MAKES, FaultTable, cells, page

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"


def test_the_page_is_the_tables() -> None:
    assert PAGE.read_text() == page()
    assert "**missing**" not in page()


@pytest.mark.parametrize("make", MAKES)
def test_every_cloud_plays_its_cells(make: str) -> None:
    module = import_module(f"tests.providers.{make}.test_conformance")
    classes = [
        var
        for var in vars(module).values()
        if isinstance(var, type) and issubclass(var, FaultTable)
    ]
    assert [item.make for item in classes if item is not FaultTable] == [make]
    assert len(cells(make)) > 40
