"""docs/screens.md shows the pages of the terminal as they are.

To write it anew: SPOTD_WRITE_GOLDEN=1 pytest tests/spotd/cli/test_screens.py, then read it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.spotd.cli.conftest import Spotctl
from tests.spotd.cli.fleet import NAME, long_named

PAGE = Path(__file__).parents[3] / "docs" / "screens.md"
WIDTHS = (80, 120)
LINES = ("ps", f"show {NAME}", "nodes", f"cost {NAME}", "offers", "orphans")
HEAD = """\
# On the screen

The pages of every day, for a job with a long name in a region with a long name, on a terminal of 80
and of 120 columns. `-o wide` shows every column at any width. This page is written by
`SPOTD_WRITE_GOLDEN=1 pytest tests/spotd/cli/test_screens.py`.
"""


def test_the_page_shows_what_is_printed(
    spotctl: Spotctl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = long_named()
    text = HEAD
    for line in LINES:
        text += f"\n## `spotctl {line.replace(NAME, 'JOB')}`\n"
        for width in WIDTHS:
            monkeypatch.setenv("COLUMNS", str(width))
            assert spotctl(rig, *line.split()) == 0
            printed = capsys.readouterr()
            text += f"\nAt {width} columns:\n\n```text\n{printed.out}{printed.err}```\n"
    text = text.replace(str(rig.folder), "/tmp/FOLDER")
    rig.close()
    if os.environ.get("SPOTD_WRITE_GOLDEN"):
        PAGE.write_text(text)
    assert text == PAGE.read_text()
