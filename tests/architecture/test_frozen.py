"""Interfaces that others hold us to change on purpose alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.architecture.frozen import ALL

FOLDER = Path(__file__).with_name("frozen")


@pytest.mark.parametrize("name", ALL)
def test_it_is_as_it_was(name: str) -> None:
    path, now = FOLDER / name, ALL[name]()
    if os.environ.get("SPOTD_WRITE_GOLDEN"):
        path.write_text(now)
    assert now == path.read_text()
