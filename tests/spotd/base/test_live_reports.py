"""Reports are found by when they were made; what is none is passed over."""

from __future__ import annotations

import json
from pathlib import Path

from spotd.base.live_reports import read_reports


def test_the_oldest_is_first_and_rubbish_is_none(tmp_path: Path) -> None:
    def write(name: str, **changes: object) -> None:
        facts = {"kind": "LiveReport", "cloud": "aws", "at": "2026-11-23T10:00:00Z", "ok": True}
        (tmp_path / f"{name}.json").write_text(json.dumps(facts | changes))

    write("b", at="2026-11-22T10:00:00Z", ok=False)
    write("a", kind="RecoveryReport")
    write("no-zone", at="2026-11-22T10:00:00")
    write("no-time", at=7)
    (tmp_path / "half.json").write_text('{"kind": "Live')
    (tmp_path / "list.json").write_text("[]")
    found = read_reports(tmp_path)
    assert [(one.kind, one.ok, one.at.day) for one in found] == [
        ("LiveReport", False, 22),
        ("RecoveryReport", True, 23),
    ]
    assert read_reports(tmp_path / "none") == []
