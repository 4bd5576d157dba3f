"""docs/security.md names files and tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import spotd

ROOT = Path(spotd.__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_file_that_it_names_is_there() -> None:
    named = re.findall(r"`((?:spotd|trainer|providers|systemd|tests)/[\w*./]+)`", PAGE)
    assert len(named) > 40
    assert [name for name in named if not list(ROOT.glob(name))] == []


def test_each_threat_has_its_answer() -> None:
    assert re.findall(r"^\*\*(T\d)\.", PAGE, re.MULTILINE) == [f"T{n}" for n in range(1, 8)]
    for threat in re.split(r"^\*\*T\d\.", PAGE, flags=re.MULTILINE)[1:]:
        assert "tests/" in threat.split("\n## ")[0] or "no TCP port" in threat
