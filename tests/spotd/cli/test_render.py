"""Cells of tables."""

from __future__ import annotations

import pytest

from spotd.cli.render import Cell, phase_cell
from spotd.dashboard.components import phase_sign


@pytest.mark.parametrize(
    ("job", "cell"),
    [
        ({"phase": "succeeded", "kept_nothing": False}, Cell("succeeded", "green")),
        ({"phase": "succeeded", "kept_nothing": True}, Cell("succeeded, nothing kept", "yellow")),
        ({"phase": "running"}, Cell("running", "green")),  # of an older daemon
    ],
)
def test_a_success_that_kept_nothing_is_not_green(job: dict[str, object], cell: Cell) -> None:
    assert phase_cell(job) == cell


def test_nor_is_it_good_on_a_page() -> None:
    assert "good" in str(phase_sign({"phase": "succeeded", "kept_nothing": False}))
    page = str(phase_sign({"phase": "succeeded", "kept_nothing": True}))
    assert "warn" in page
    assert "succeeded, nothing kept" in page
