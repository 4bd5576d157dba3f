"""`spotctl audit`: one line for each request, with its outcome."""

from __future__ import annotations

import json

import pytest

from spotd.base.errors import ExitCode
from spotd.cli.audit import merge_by_request
from spotd.domain.events import AuditOutcome
from spotd.store.audit import AuditRow
from tests.spotd.api.rig import Rig
from tests.spotd.cli.conftest import Spotctl

Captured = pytest.CaptureFixture[str]


def audit_line(
    rig: Rig, outcome: AuditOutcome, text: str = "", request: str = "", ago_s: int = 0
) -> None:
    row = AuditRow(rig.ago(ago_s), 1000, "ada", "cancel", "gpt", outcome, text, request)
    rig.store.audit.add(row)


def test_each_request_is_one_line(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    audit_line(rig, AuditOutcome.ASKED, request="r1", ago_s=60)
    audit_line(rig, AuditOutcome.ASKED, request="r2")
    audit_line(rig, AuditOutcome.DONE, "id=j1", request="r1")
    audit_line(rig, AuditOutcome.REFUSED, "not in the\x1b[2J group", request="")
    audit_line(rig, AuditOutcome.DONE, "long ago", ago_s=7200)
    assert spotctl(rig, "audit", "--since", "1h", "-o", "wide") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[5] for line in lines[1:]] == ["done", "unknown", "refused"]
    assert "spotd ended, or lost its database" in lines[2]
    assert "\x1b" not in lines[3]
    assert spotctl(rig, "audit", "--since", "1d", "-o", "json") == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item["text"] for item in items if item["outcome"] == "done"] == ["id=j1", "long ago"]
    assert items[0]["at"] < items[1]["at"], "when it was asked for"


def test_all_pages_are_read(
    rig: Rig, spotctl: Spotctl, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spotd.api.routes.events.PAGE", 2)
    for number in range(5):
        audit_line(rig, AuditOutcome.REFUSED, f"n{number}")
    assert spotctl(rig, "audit", "-o", "json") == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item["text"] for item in items] == [f"n{number}" for number in range(5)]


def test_invalid_duration_is_an_error(rig: Rig, spotctl: Spotctl, capsys: Captured) -> None:
    assert spotctl(rig, "audit", "--since", "yesterday") == ExitCode.USAGE
    assert "--since 24h" in capsys.readouterr().err


def test_lines_without_a_request_are_not_merged() -> None:
    line = {"at": "1", "request": "", "outcome": "refused", "text": "x"}
    assert merge_by_request([line, dict(line)]) == [line, line]
